"""What this machine has for a local run, found without importing torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import Config
    from engine.flags import Problem

DEVICES = Path("/dev")
CORES_PER_RUN = 2  # below it the trainer, the engine and Ray of a run wait for those of the others


def gpu_count(devices: Path = DEVICES, environment: Mapping[str, str] = os.environ) -> int:
    """NVIDIA GPUs that a process started here would see."""
    try:
        present = sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in devices.iterdir())
    except OSError:
        return 0
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    listed = [part.strip() for part in visible.split(",")]
    end = next((i for i, part in enumerate(listed) if part in ("", "-1", "NoDevFiles")), len(listed))
    return min(present, end)


def core_count() -> int:
    """Processor cores that a process started here may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None


def misfit(config: Config) -> Problem | None:
    """Why a local run of this configuration could not start here; None when its GPUs are there."""
    from engine.flags import Problem

    engines, trainer, here = config.engine_gpus, config.trainer_ranks, gpu_count()
    if config.placement.device != "cuda" or here >= engines + trainer:
        return None
    words = f"needs {engines + trainer} GPUs ({engines} for the engines, {trainer} for the trainer), this machine has {here}"
    return Problem("placement.device", f"{words}: launch it on Slurm, or lower vllm.num_engines and actor.num_gpus_per_node")


def crowding(configs: Sequence[Config]) -> str | None:
    """A warning where several local runs, which all start at once, have too little of this machine each."""
    count, cores, gpus = len(configs), core_count(), gpu_count()
    wanted = sum(config.engine_gpus + config.trainer_ranks for config in configs if config.placement.device == "cuda")
    short = [f"{cores} core{'s' * (cores != 1)}"] if cores < CORES_PER_RUN * count else []
    short += [f"{gpus} GPU{'s' * (gpus != 1)} ({wanted} wanted)"] if gpus < wanted else []
    return f"{count} runs start at once on this machine's {' and '.join(short)}" if count > 1 and short else None
