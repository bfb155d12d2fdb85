"""What the algorithms cost, on batches of the demo's size from a real vLLM: advantages and correction as a share of a step,
and routing replay with its measurement against training without captured routing."""

from __future__ import annotations

import asyncio
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import engine.algo.loss
import engine.batch
import engine.train.passes
from engine.batch import PreparedBatch, prepare
from engine.config import Config
from engine.recipes import load
from engine.rollout.pool import Batch
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from tests.bench.figures import report
from tests.real_parts import Call, real_parts

STEPS, WARM_UP, PAIRS = 20, 5, 30
TIMED = (
    (engine.batch, "set_advantages"),
    (engine.algo.loss, "importance_weights"),
    (engine.algo.loss, "correction_metrics"),
    (engine.algo.loss, "finish_correction"),
    (engine.train.passes, "importance_weights"),
)


class Stopwatch:
    """Processor seconds of the calling thread inside the functions that it wraps: the engine runs them in processes without
    the sampler's loop, which here competes for the interpreter lock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for module, name in TIMED:
            setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, function: Callable) -> Callable:
        def timed(*args: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.thread_time() - started

        return timed

    def taken(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


async def steps(config: Config, agent: Path, folder: Path) -> list[Batch]:
    """Run whole steps of the demo and report the share of advantages and correction; returns the batches."""
    watch, batches = Stopwatch(), []
    of_step, of_training = [], []
    async with real_parts(config, agent, folder) as parts:
        parts.pool.start()
        started = time.perf_counter()
        for version in range(WARM_UP + STEPS):
            batches.append(await parts.pool.next_batch())
            taken = time.perf_counter()
            batch = await asyncio.to_thread(prepare, batches[-1], config.train.max_staleness, config)
            await Call(parts.trainer).train(batch.order)
            trained = time.perf_counter()
            await parts.publish(version + 1)
            ended = time.perf_counter()
            seconds = watch.taken()
            of_step.append(seconds / (ended - started))
            of_training.append(seconds / (trained - taken))
            started = ended
    report("algorithms/step_share", statistics.median(of_step[WARM_UP:]), "share")
    report("algorithms/training_share", statistics.median(of_training[WARM_UP:]), "share")
    return batches


def without_routing(batch: Batch) -> Batch:
    """The same batch as a sampler leaves it that captures no routing."""
    stripped = copy.deepcopy(batch)
    for group in stripped.groups:
        for rollout in group.payload:
            for segment in rollout.segments:
                segment.routed_experts = None
    return stripped


def seconds_of(trainer: Trainer, prepared: PreparedBatch) -> float:
    started = time.perf_counter()
    trainer.train(prepared.order)
    return time.perf_counter() - started


def replay_overhead(config: Config, model: Path, batches: list[Batch]) -> float:
    """Median of (training step with replay) / (without captured routing) - 1 over interleaved pairs."""
    live = config.model_copy(update={"train": config.train.model_copy(update={"routing_replay": False})})
    trainers = [Trainer(get=lambda refs: refs) for _ in range(2)]
    trainers[0].setup(TrainerSpec(config, str(model), total_steps=config.train.max_steps))
    with patch("engine.train.actor.moe_layers", lambda _: []):  # no hook on routers and experts
        trainers[1].setup(TrainerSpec(live, str(model), total_steps=config.train.max_steps))
    ratios = []
    for pair in range(WARM_UP + PAIRS):
        routed = batches[pair % len(batches)]
        orders = [prepare(b, config.train.max_staleness, config) for b in (routed, without_routing(routed))]
        seconds = [0.0, 0.0]
        for side in (0, 1) if pair % 2 else (1, 0):
            seconds[side] = seconds_of(trainers[side], orders[side])
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios[WARM_UP:]) - 1


def main() -> None:
    torch.set_num_threads(1)
    recipe, config, problems = load("demo", [])
    assert recipe and config and not problems, problems
    agent = recipe.path.parent / "sort_digits" / "agent.py"
    with tempfile.TemporaryDirectory() as folder:
        batches = asyncio.run(steps(config, agent, Path(folder)))
        report("algorithms/replay_overhead", replay_overhead(config, Path(folder) / "model", batches), "share")


if __name__ == "__main__":
    main()
