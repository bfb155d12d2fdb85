"""Deleting a run for good: its directory and everything that the database knows of it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from engine.wire import RunDir
from molt_tui.errors import MoltError, Refused
from molt_tui.filters import ACTIVE
from molt_tui.services.runs import Run, get_run
from molt_tui.store.database import Store
from molt_tui.store.ingest import ingest
from molt_tui.store.liveness import process_alive
from molt_tui.store.runs import forget_run, supervisor_of

HIDDEN = ".deleted-"


def why_not(store: Store, run: Run) -> str | None:
    """Why a run must not be deleted now; None when nothing of it is known to be at work."""
    if run.state in ACTIVE:
        return f"{run.name} is {run.state}: stop it first"
    if process_alive(supervisor_of(run.directory)):
        return f"{run.name}: its supervisor is still at work; stop it first"
    if store.rows("SELECT 1 FROM slurm_jobs WHERE run_num = ? AND ended = 0", (run.num,)):
        return f"{run.name}: its Slurm job {run.job_id or ''} is not over; stop it first"
    if run.path.is_symlink():
        return f"{run.path} is a link: remove what it points to, or the link, by hand"
    return None


def delete(store: Store, run_id: str) -> int:
    """Delete one run; returns the bytes that its directory held. Raises Refused for a live run, MoltError when files stay.

    The directory first gets a hidden name, so that no reader meets a run that is half there; what an earlier deletion left
    when it was cut off goes as well.
    """
    known = get_run(store, run_id)
    if known.path.is_dir():
        ingest(store, [known.path], rollouts=False)
    run = get_run(store, run_id)
    problem = why_not(store, run)
    if problem is not None:
        raise Refused(problem)
    size, mark = _size(run.path), hashlib.sha256(run.id.encode()).hexdigest()[:16]
    hidden = run.path.with_name(f"{HIDDEN}{mark}-{os.getpid()}")
    left: list[str] = []
    if run.path.is_dir():
        _hide(run, hidden)
    for folder in (hidden, *_cut_off(run.path.parent, mark)):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, onerror=lambda _, path, info: left.append(f"{path}: {getattr(info[1], 'strerror', info[1])}"))
    with store.write() as connection:
        forget_run(connection, run.id)
    if left:
        raise MoltError(f"{run.name} is forgotten, but {len(left)} of its files stay: {left[0]}; remove {hidden} by hand")
    return size


def _hide(run: Run, hidden: Path) -> None:
    """Give the directory its hidden name, or its own back when somebody started it at this very moment."""
    try:
        run.path.rename(hidden)
    except OSError as error:
        raise MoltError(f"cannot delete {run.path}: {error.strerror}") from error
    if process_alive(supervisor_of(RunDir(hidden))):
        hidden.rename(run.path)
        raise Refused(f"{run.name}: it was started just now; stop it first")


def _cut_off(root: Path, mark: str) -> list[Path]:
    """Hidden directories of this run whose deletion ended with its process."""
    found = [path for path in root.glob(f"{HIDDEN}{mark}-*") if path.name.rpartition("-")[2].isdecimal()]
    return [path for path in found if not Path("/proc", path.name.rpartition("-")[2]).exists()]


def delete_all(store: Store, run_ids: Sequence[str]) -> tuple[list[Run], list[str]]:
    """(runs deleted, one line per run that was not). One that is refused does not keep the others."""
    done, problems = [], []
    for run_id in run_ids:
        try:
            run = get_run(store, run_id)
            delete(store, run_id)
        except MoltError as error:
            problems.append(str(error))
        else:
            done.append(run)
    return done, problems


def _size(folder: Path) -> int:
    """Bytes of all files below a folder; what cannot be read counts nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue
    return total
