"""Copy a model and data files to where compute nodes without network can read them: `python slurm/stage.py TO MODEL [FILE ...]`.

Runs in the engine's environment, whose huggingface_hub fetches a model by its hub name, or takes it from its own cache with
HF_HUB_OFFLINE=1. Prints one line per copy: `model PATH` or `data PATH`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken")


def stage_model(target: Path, model: str) -> Path | None:
    """The staged model directory; None for models that are built in code. An existing complete copy is kept."""
    if not model or model.startswith("tiny:"):
        return None
    folder = target / "models" / model.strip("/").replace("/", "--")
    source = Path(model).expanduser()
    if source.is_dir():
        folder = target / "models" / source.name
        if source.resolve() != folder.resolve():
            shutil.copytree(source, folder, dirs_exist_ok=True)
        return folder
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        shutil.copytree(snapshot_download(model, allow_patterns=list(WANTED)), folder, dirs_exist_ok=True)
    else:
        snapshot_download(model, local_dir=folder, allow_patterns=list(WANTED))
    return folder


def stage_file(target: Path, name: str) -> Path:
    """The staged copy of a data file or dataset directory."""
    source, folder = Path(name).expanduser(), target / "data"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / source.name
    if source.is_dir():
        shutil.copytree(source, copy, dirs_exist_ok=True)
    elif source.resolve() != copy.resolve():
        shutil.copyfile(source, copy)
    return copy


def main() -> int:
    target, model, *files = Path(sys.argv[1]), *sys.argv[2:]
    try:
        staged = stage_model(target, model)
        if staged is not None:
            print(f"model {staged}")
        for name in files:
            print(f"data {stage_file(target, name)}")
    except Exception as error:
        print(f"{type(error).__name__} at {' '.join((model, *files))}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
