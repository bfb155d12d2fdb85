"""What a run reports: step metrics put together, the probe of sampler against trainer, and the progress file."""

import asyncio
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from engine.algo.mismatch import finish_gap, gap_sums
from engine.batch import PreparedBatch
from engine.config import Config
from engine.gpus import GpuMonitor
from engine.metrics import spread
from engine.placement import Cluster
from engine.rollout.transport import EngineStats
from engine.sync.publish import PublishReport
from engine.timers import StepTimer
from engine.train.plan import TrainReport
from engine.wire import encode_line, write_atomic


def step_metrics(
    batch: PreparedBatch, report: TrainReport, sync: PublishReport | None, engines: dict[str, Any], timer: StepTimer
) -> dict[str, Any]:
    """All metrics of one step. A rate whose time was not measured is absent."""
    metrics = batch.metrics | report.metrics | engines | timer.metrics()
    metrics["staleness/masked_tokens"] = report.metrics.get("staleness/masked_tokens", 0.0) + batch.dropped_tokens
    if sync is not None:
        metrics |= sync.metrics() | {"time/pause": sync.pause_seconds}
    tokens = sum(sample.length for sample in batch.order.samples)
    busy = timer.seconds.get("forward_backward", 0.0)
    if busy > 0:
        metrics["perf/train_tok_s"] = tokens / busy
    kept = metrics.get("is/masked_frac")
    trained = sum(step.tokens for step in batch.order.optimizer_steps)
    metrics["perf/kept_tok_s"] = trained * (1.0 - (kept or 0.0)) / metrics["time/step"]
    return metrics


def alerts(rewards: list[float], metrics: dict[str, Any], config: Config) -> dict[str, str]:
    """Rule -> message of what makes a trained batch worthless though nothing failed."""
    found = {}
    if rewards and not np.isfinite(rewards).any() and not config.distills:
        found["no_reward"] = "no rollout has a finite reward, so nothing is learnt; see what the agent's Env.step returns"
    norms = {key: metrics.get(key, 0.0) for key in ("optim/grad_norm", "optim/critic_grad_norm")}
    bad = [f"{key} is {norm}" for key, norm in norms.items() if not np.isfinite(norm)]
    if bad:
        found["not_finite"] = f"{', '.join(bad)}: such a step leaves the weights as they are"
    return found


@dataclass
class Probe:
    """Scores fixed sequences on both sides right after an update: the numerics gap, free of staleness."""

    sequences: list[list[int]]
    every: int

    def due(self, version: int) -> bool:
        return bool(self.sequences) and version % self.every == 0

    async def measure(self, cluster: Cluster) -> dict[str, float]:
        """mismatch/* over every engine; both sides hold the version that was just published."""
        # A sharded forward pass needs every rank, though all return the same.
        ranks, scored = await asyncio.gather(
            asyncio.gather(*[t.score(self.sequences) for t in cluster.trainers]),
            asyncio.gather(*[e.score(self.sequences) for e in cluster.engines]),
        )
        ours = torch.from_numpy(np.concatenate(ranks[0]))
        mask = torch.ones_like(ours, dtype=torch.bool)
        gaps = [gap_sums(ours, torch.from_numpy(np.concatenate(theirs)), mask) for theirs in scored]
        return max(map(finish_gap, gaps), key=lambda gap: gap["k3_kl"])


def probe_sequences(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random but fixed token sequences: the same ones over the whole run and after a resume."""
    rng = np.random.default_rng(seed)
    return [[int(t) for t in rng.integers(0, vocab_size, length)] for _ in range(count)]


@dataclass
class Progress:
    """attempts/<n>/progress.json, merged into status.json by the supervisor; and rates between two steps."""

    path: Path
    state: dict[str, Any] = field(default_factory=dict)
    _stats: list[EngineStats] = field(default_factory=list)
    _at: float = field(default_factory=time.perf_counter)
    _gpus: GpuMonitor = field(default_factory=GpuMonitor)

    def update(self, **changes: Any) -> None:
        self.state.update(changes)
        write_atomic(self.path, encode_line(self.state))

    async def engine_metrics(self, cluster: Cluster) -> dict[str, Any]:
        """engine/*, host/* and sampler rates since the last call."""
        stats = await asyncio.gather(*[e.stats() for e in cluster.engines])
        now = time.perf_counter()
        wall = now - self._at
        found = engine_spreads(stats, self._stats, wall) | host_metrics() | self._gpus.take()
        if self._stats:
            found["perf/rollout_tok_s"] = sum(s.tokens - p.tokens for s, p in zip(stats, self._stats)) / wall
            busy = sum(s.busy_s - p.busy_s for s, p in zip(stats, self._stats)) / len(stats)
            found["time/rollout_idle_frac"] = min(1.0, max(0.0, 1.0 - busy / wall))
        self._stats, self._at = stats, now
        return found


def engine_spreads(stats: list[EngineStats], before: list[EngineStats], seconds: float) -> dict[str, Any]:
    """engine/*: min, mean, max and the worst engine by name; apart from the version, of the `seconds` since `before`."""
    label = [f"engine-{i}" for i in range(len(stats))]
    found = spread("engine/version", dict(zip(label, [float(s.version) for s in stats])), worst_is_high=False)
    pairs = dict(zip(label, zip(stats, before)))
    found |= spread("engine/running", {n: (s.running_s - p.running_s) / seconds for n, (s, p) in pairs.items()}, False)
    found |= spread("engine/waiting", {n: (s.waiting_s - p.waiting_s) / seconds for n, (s, p) in pairs.items()})
    found |= spread("engine/preemptions", {n: float(s.preemptions - p.preemptions) for n, (s, p) in pairs.items()})
    kv = {n: (s.kv_s - p.kv_s) / seconds for n, (s, p) in pairs.items() if s.kv_s is not None and p.kv_s is not None}
    return found | spread("engine/kv_frac", kv)


def host_metrics() -> dict[str, Any]:
    """CPU and memory of this host, by its name."""
    name, memory = socket.gethostname(), psutil.virtual_memory()
    return spread("host/cpu", {name: psutil.cpu_percent() / 100}) | spread("host/mem", {name: memory.percent / 100})
