"""From the configuration to what each actor is started with."""

import os
from pathlib import Path

from engine.agents.runner import CLOSE_TIMEOUT_S
from engine.config import Config
from engine.placement import resolve_device
from engine.rollout.engine import EngineSpec
from engine.train.plan import TrainerSpec
from engine.validate import is_dense

RUNNER_SLACK_S = 30.0


def engine_specs(config: Config, model: Path) -> list[EngineSpec]:
    device, moe, cores = resolve_device(config), not is_dense(str(model)), pinned_cores(config)[0]
    return [EngineSpec(str(model), config, device, moe, pinned, index) for index, pinned in enumerate(cores)]


def trainer_specs(config: Config, model: Path, rendezvous: tuple[str, int]) -> list[TrainerSpec]:
    world, cores = config.trainer_ranks, pinned_cores(config)[1]
    host, port = rendezvous
    device, reference = resolve_device(config), config.ref.model_name_or_path
    if reference == config.actor.model_name_or_path:
        reference = str(model)
    return [
        TrainerSpec(config, str(model), rank, world, host, port, device, config.train.max_steps, cores[rank], reference or None)
        for rank in range(world)
    ]


def group_limit_s(config: Config) -> float:
    """Time after which a group's runner must have answered, with all retries and closings, unless it hangs."""
    rollout = config.rollout
    return (rollout.max_retries + 1) * (rollout.timeout_s + CLOSE_TIMEOUT_S) + RUNNER_SLACK_S


def pinned_cores(config: Config) -> tuple[list[list[int] | None], list[list[int] | None]]:
    """CPU cores of every engine and of every trainer rank, each side on half of the machine's; None where nothing is pinned."""
    cores, engines, ranks = sorted(os.sched_getaffinity(0)), config.vllm.num_engines, config.trainer_ranks
    if not config.placement.pin_cores or len(cores) < 2:
        return [None] * engines, [None] * ranks
    half = len(cores) // 2
    return _share(cores[:half], engines), _share(cores[half:], ranks)


def _share(cores: list[int], members: int) -> list[list[int] | None]:
    """Split cores over members; members beyond the number of cores share them round-robin."""
    return [cores[i::members] or [cores[i % len(cores)]] for i in range(members)]


def local_model(name: str) -> Path:
    """The directory of a model given as one or by its hub name, whose files are fetched, or taken from the hub's cache."""
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken"]))
