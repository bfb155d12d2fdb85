"""Checkpoints of the trainer ranks as directories that are complete or do not count.

step-000120/   .metadata *.distcp    models and optimizers (torch.distributed.checkpoint)
               rank-<r>.pkl          random state of each rank
               trainer.pkl           position and live settings of the trainer
               controller.pkl        state of the controller, opaque here
               hf/                   optional Hugging Face export
               COMPLETE              written last, before the directory gets its name
"""

import errno
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from engine.wire import CHECKPOINT_MARK as COMPLETE

# Models that are trained, by role (actor, critic), each with its optimizer.
Trained = dict[str, tuple[nn.Module, torch.optim.Optimizer]]

Export = Callable[[Path], None]

_PREFIX = "step-"
FULL_BYTES = 64 * 1024


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, unfinished or unreadable."""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints with a completion mark, oldest step first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.name.startswith(_PREFIX) and (p / COMPLETE).is_file())


def latest_checkpoint(folder: Path) -> Path | None:
    return next(reversed(complete_checkpoints(folder)), None)


def prune_checkpoints(folder: Path, keep: int) -> list[Path]:
    """Remove all complete checkpoints but the newest `keep`, and what unfinished saves left; returns the former."""
    removed = complete_checkpoints(folder)[:-keep]
    for path in folder.glob(f".{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)  # of saves that were killed
    for path in removed:
        # Without its mark first, a half-removed checkpoint can never be taken for a complete one.
        (path / COMPLETE).unlink()
        shutil.rmtree(path)
    return removed


def save_checkpoint(
    path: Path, trained: Trained, trainer_state: dict[str, Any], controller_state: bytes, extra: Export | None = None
) -> None:
    """Write one checkpoint; all ranks call it and return when it is complete. `extra(folder)` may add files on all ranks."""
    rank = dist.get_rank()
    partial = path.with_name(f".{path.name}.partial")
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    with _full_disk_by_name(partial):
        dcp.save(_training_state(trained), checkpoint_id=partial)
    (partial / f"rank-{rank}.pkl").write_bytes(pickle.dumps(_random_state()))
    if extra is not None:
        extra(partial)
    dist.barrier()
    if rank == 0:
        (partial / "trainer.pkl").write_bytes(pickle.dumps(trainer_state))
        (partial / "controller.pkl").write_bytes(controller_state)
        _complete(partial, path)
    dist.barrier()


@contextmanager
def _full_disk_by_name(folder: Path) -> Iterator[None]:
    """torch reports a full disk as a broken file, in words that vary: say what it is. Raises OSError then."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        usage = shutil.disk_usage(folder)
        if usage.free < max(FULL_BYTES, usage.total // 100):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


def load_checkpoint(path: Path, trained: Trained) -> tuple[dict[str, Any], bytes]:
    """Restore model, optimizer and random state in place on every rank; returns trainer state and controller state.

    The number of ranks may differ from that of the save; a rank that it did not have keeps its present random state.
    Raises CheckpointError when the completion mark is missing.
    """
    if not (path / COMPLETE).is_file():
        raise CheckpointError(f"{path} has no completion mark: resume from a checkpoint that has a file named {COMPLETE}")
    state = _training_state(trained)
    dcp.load(state, checkpoint_id=path)
    for name, (model, optimizer) in trained.items():
        set_state_dict(model, optimizer, model_state_dict=state[name]["model"], optim_state_dict=state[name]["optimizer"])
    own = path / f"rank-{dist.get_rank()}.pkl"
    if own.is_file():
        _restore_random_state(pickle.loads(own.read_bytes()))
    dist.barrier()
    return pickle.loads((path / "trainer.pkl").read_bytes()), (path / "controller.pkl").read_bytes()


def _training_state(trained: Trained) -> dict[str, Any]:
    states = {name: get_state_dict(model, optimizer) for name, (model, optimizer) in trained.items()}
    return {name: {"model": model, "optimizer": optim} for name, (model, optim) in states.items()}


def _complete(partial: Path, path: Path) -> None:
    """Mark and publish a finished directory, replacing an earlier one of the same name."""
    for file in partial.rglob("*"):
        if file.is_file():
            _sync(file)
    (partial / COMPLETE).touch()
    _sync(partial / COMPLETE)
    earlier = path.with_name(f".{path.name}.earlier")
    if path.exists():
        # Whole and aside until the new one has its name: removing it takes long, and it may be the only one there is.
        shutil.rmtree(earlier, ignore_errors=True)
        os.rename(path, earlier)
    os.rename(partial, path)
    _sync(path.parent)
    shutil.rmtree(earlier, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _random_state() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
