"""Sampler, runner, pool and trainer of a recipe as plain objects in this process; only vLLM's core is a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.data import load_prompts
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.rollout.pool import RolloutPool
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from engine.sync.publish import publish
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from engine.train.tiny import build_for_run


class Call:
    """A plain object whose methods can be awaited, as an actor's can."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any) -> Any:
            return await asyncio.to_thread(method, *args)

        return call


@dataclass
class Parts:
    engine: VllmEngine
    trainer: Trainer
    pool: RolloutPool
    manifest: Any

    async def publish(self, version: int) -> None:
        await publish([Call(self.trainer)], [self.engine], self.manifest, version)
        self.pool.published(version)


@asynccontextmanager
async def real_parts(config: Config, agent: Path, folder: Path) -> AsyncIterator[Parts]:
    """Everything started and joined, the pool not yet running."""
    model = build_for_run(config, folder / "model", agent)
    engine, trainer, router, runner = VllmEngine(), Trainer(get=lambda refs: refs), Router(), AgentRunnerActor()
    eager = config.model_copy(update={"vllm": config.vllm.model_copy(update={"enforce_eager": True})})
    await engine.start(EngineSpec(str(model), eager, return_routed_experts=True))
    info = trainer.setup(TrainerSpec(config, str(model), total_steps=config.train.max_steps))
    await router.start([engine])
    spec = RunnerSpec(str(agent), str(model), config, info["vocab_size"])
    await runner.start(spec, router, lambda records: records)
    pool = RolloutPool(load_prompts(config.data, seed=1, epochs=9), RunnerDispatch([runner]), config)
    host, port = trainer.free_address()
    await asyncio.gather(Call(trainer).init_transfer(host, port, 2), engine.init_transfer(host, port, 1, 2))
    try:
        yield Parts(engine, trainer, pool, trainer.weight_manifest())
    finally:
        await pool.close()
        await engine.shutdown()
