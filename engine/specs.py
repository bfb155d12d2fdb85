"""From the configuration to what each actor is started with."""

import os
from pathlib import Path

from engine.agents.runner import CLOSE_TIMEOUT_S
from engine.config import Config
from engine.placement import Cluster, resolve_device
from engine.rollout.engine import EngineSpec
from engine.train.plan import TrainerSpec
from engine.validate import is_dense

RUNNER_SLACK_S = 30.0


def engine_specs(config: Config, model: Path, cluster: Cluster) -> list[EngineSpec]:
    cores = share(cluster.cores()[0], config.vllm.num_engines)
    device, moe = resolve_device(config), not is_dense(str(model))
    return [EngineSpec(str(model), config, device, moe, pinned, index) for index, pinned in enumerate(cores)]


def trainer_specs(config: Config, model: Path, rendezvous: tuple[str, int], cluster: Cluster) -> list[TrainerSpec]:
    world = config.trainer_ranks
    cores = share(cluster.cores()[1], world)
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


def share(cores: list[int] | None, members: int) -> list[list[int] | None]:
    """Split cores over members; members beyond the number of cores share them round-robin."""
    if not cores:
        return [None] * members
    return [cores[i::members] or [cores[i % len(cores)]] for i in range(members)]


def local_model(name: str) -> Path:
    """The directory of a model given as one or by its hub name, whose files are fetched, or taken from the hub's cache."""
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken"]))
