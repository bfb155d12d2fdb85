"""Where the processes of an attempt run: an own Ray, and the engine, trainer, router and runner actors on it."""

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.topology import arrange, check_gpus, nodes_of

JOIN_SECONDS = 300.0


class NodeStartError(RuntimeError):
    """Nodes of the allocation did not join Ray."""


class Remote:
    """A Ray actor handle with plain awaitable methods, so that actors and in-process objects look alike."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name).remote

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self._handle,)


def resolve_device(config: Config) -> str:
    """cpu or cuda; `auto` takes CUDA where there is one."""
    if config.placement.device != "auto":
        return config.placement.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; callers that can should bind port 0 themselves."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


@dataclass
class Cluster:
    """Handles of every actor of the attempt; all of them answer awaitable calls."""

    config: Config
    engines: list[Remote] = field(default_factory=list)
    trainers: list[Remote] = field(default_factory=list)
    runners: list[Remote] = field(default_factory=list)
    router: Remote | None = None
    scratch: Path | None = None

    def start_ray(self) -> None:
        """Start this attempt's own Ray, or join the one that runs already; dashboard off, private temp directory.

        In an allocation MOLT_RAY_ADDRESS names it and MOLT_RAY_NODES says how many nodes it will have.
        """
        import ray

        # AF_UNIX paths are limited to 107 bytes: Ray's sockets need a short directory.
        self.scratch = Path(os.environ.get("MOLT_SCRATCH") or tempfile.mkdtemp(prefix="molt-"))
        common: dict[str, Any] = {"log_to_driver": True, "configure_logging": False}
        address = self.config.placement.ray_address or os.environ.get("MOLT_RAY_ADDRESS")
        if address:
            ray.init(address=address, **common)
            self._wait_for_nodes(int(os.environ.get("MOLT_RAY_NODES") or 1))
            return
        actors = self.config.vllm.num_engines + self.config.trainer_ranks + self.config.rollout.num_runners + 1
        ray.init(num_cpus=max(os.cpu_count() or 1, actors + 1), object_store_memory=512 * 1024 * 1024, include_dashboard=False,
                 _temp_dir=str(self.scratch), _node_ip_address="127.0.0.1", **common)  # fmt: skip
        check_gpus(int(ray.cluster_resources().get("GPU", 0)), self.config)

    def _wait_for_nodes(self, count: int) -> None:
        """Block until `count` nodes have joined. Raises NodeStartError, which the job may heal by starting again."""
        import ray

        deadline = time.monotonic() + JOIN_SECONDS
        while (alive := sum(node["Alive"] for node in ray.nodes())) < count:
            if time.monotonic() > deadline:
                raise NodeStartError(f"{alive} of {count} nodes joined Ray within {JOIN_SECONDS:.0f} s; see logs/node-*.log")
            time.sleep(0.2)

    def create_actors(self) -> None:
        """Create the actor processes; they do their heavy imports at once, in parallel."""
        import ray

        from engine.rollout.engine import VllmEngine
        from engine.rollout.router import Router
        from engine.rollout.runner import AgentRunnerActor
        from engine.train.actor import Trainer

        config = self.config
        gpu = 1.0 if resolve_device(config) == "cuda" else 0.0
        layout = arrange(nodes_of([node["Resources"] for node in ray.nodes() if node["Alive"]]), config)
        shared = self._shared_gpus(layout.trainers) if config.placement.colocate else None

        def spawn(cls: type, nodes: Sequence[str | None], concurrency: int, gpus: float, threads: int) -> list[Remote]:
            environment = {"env_vars": {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}}
            options = {"num_cpus": 1, "num_gpus": gpus, "max_concurrency": concurrency, "runtime_env": environment}
            places = [{"resources": {node: 0.001}} if node else {} for node in nodes]
            if gpus and shared:
                options["num_gpus"], places = 0.5, shared
            return [Remote(ray.remote(cls).options(**options, **place).remote()) for place in places]

        threads = max(1, (os.cpu_count() or 2) // 2)
        self.engines = spawn(VllmEngine, layout.engines, 10_000, gpu * config.vllm.tensor_parallel_size, threads)
        self.trainers = spawn(Trainer, layout.trainers, 1, gpu, max(1, threads // config.trainer_ranks))
        self.runners = spawn(AgentRunnerActor, layout.runners, 10_000, 0, 1)
        self.router = spawn(Router, [layout.router], 10_000, 0, 1)[0]

    def _shared_gpus(self, nodes: Sequence[str | None]) -> list[dict[str, Any]]:
        """Actor options that put engine i and trainer rank i on one GPU, for every i."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = ray.util.placement_group([{"GPU": 1, "CPU": 2} | ({node: 0.002} if node else {}) for node in nodes])
        ray.get(group.ready(), timeout=JOIN_SECONDS)
        return [{"scheduling_strategy": PlacementGroupSchedulingStrategy(group, i)} for i in range(len(nodes))]

    async def shutdown(self) -> None:
        """End the engines (their cores are own processes), then Ray; the supervisor removes whatever is left."""
        import ray

        if not ray.is_initialized():
            return
        ends = [asyncio.wrap_future(e.shutdown().future()) for e in self.engines]
        if ends:
            await asyncio.wait(ends, timeout=5)
        ray.shutdown()
        if self.scratch and not os.environ.get("MOLT_SCRATCH"):
            shutil.rmtree(self.scratch, ignore_errors=True)
