"""What asynchronous rollouts gain through pool and queue alone, and what the rollout path itself costs.

Pool, dispatch, runner, router and records are the real ones; the engines are scripted and time is virtual, so the gain
does not depend on this machine. Both sides have the same engines and the same trainer:
- Response lengths are lognormal (sigma 0.9, median 96 tokens), cut at 8 medians.
- A decoding step takes 10 ms x (1 + running / 256) per engine: reading the weights, plus the work of each sequence.
- The trainer needs 20 us per sampled token, and an update pauses the engines for 50 ms.
Speed is trained tokens per second: tokens over age at consumption are masked by the trainer and do not count.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from engine.data import PromptStream, Source
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.pool import Batch, RolloutPool
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from tests.scripted import CharTokenizer, Script, ScriptedEngine, run_virtual, update

ENGINES, RUNNERS = 2, 2
GROUPS, SAMPLES = 16, 8
MEDIAN, SIGMA, CAP = 96, 0.9, 8
BOUND = 2
WARM_UP, STEPS = 4, 24
TRAIN_S_PER_TOKEN, PAUSE_S = 20e-6, 0.05

AGENT = """
from engine.agents import Env, Result, StepEnvRunner

class Free(Env):
    async def step(self, state, **kwargs):
        return Result(reward=1.0)

class AgentRunner(StepEnvRunner):
    def __init__(self):
        super().__init__(Free)
"""


def response_length(turn: str) -> int:
    """The length belongs to the turn, so both sides sample the same responses."""
    return max(1, min(CAP * MEDIAN, round(MEDIAN * random.Random(turn).lognormvariate(0.0, SIGMA))))


async def rollout_path(engines: list[ScriptedEngine], prompts: int, bound: int, folder: str) -> RolloutPool:
    """The whole path from prompt stream to engines, in this process."""
    agent = Path(folder) / "free_agent.py"
    agent.write_text(AGENT)
    router = Router()
    await router.start(engines)
    runners = [AgentRunnerActor() for _ in range(RUNNERS)]
    config = Config(data={"max_len": CAP * MEDIAN + 64}, train={"max_staleness": bound},
                    rollout={"batch_size": GROUPS, "n_samples_per_prompt": SAMPLES})  # fmt: skip
    spec = RunnerSpec(str(agent), CharTokenizer(), config)
    for runner in runners:
        await runner.start(spec, router, lambda records: records)
    source = Source("p", [(f"{i}=", None, {}) for i in range(prompts)])
    return RolloutPool(PromptStream([source], (), seed=0, epochs=1), RunnerDispatch(runners), config)


@dataclass
class Pace:
    """Tokens and virtual seconds of the measured steps, `step_s` of each, `busy_s` per engine."""

    trained: int
    masked: int
    seconds: float
    step_s: list[float]
    busy_s: float


def count_tokens(batch: Batch, bound: int) -> tuple[int, int]:
    """(trained, masked) sampled tokens."""
    counts = [(v, n) for g in batch.groups for r in g.rollouts for s in r.segments for v, n in s.version_tokens.items()]
    masked = sum(n for v, n in counts if batch.version - v > bound)
    return sum(n for _, n in counts) - masked, masked


async def measure(bound: int, folder: str) -> Pace:
    """Train WARM_UP + STEPS batches with this staleness bound; 0 is the strictly synchronous loop."""
    script = Script(response_length)
    engines = [ScriptedEngine(script, lambda running: 0.01 * (1 + running / 256), stride=4) for _ in range(ENGINES)]
    pool = await rollout_path(engines, (WARM_UP + STEPS + BOUND + 2) * GROUPS, bound, folder)
    clock = asyncio.get_running_loop().time

    def busy() -> float:
        return statistics.mean(engine.busy_s for engine in engines)

    pool.start()
    pace, begin = Pace(0, 0, 0.0, [], 0.0), clock()
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            pace, before = Pace(0, 0, 0.0, [], 0.0), busy()
        batch = await pool.next_batch()
        trained, masked = count_tokens(batch, bound)
        await asyncio.sleep(trained * TRAIN_S_PER_TOKEN)
        for engine in engines:
            await engine.pause()
        await asyncio.sleep(PAUSE_S)
        await update(engines, batch.version + 1)
        pool.published(batch.version + 1)
        pace.trained, pace.masked = pace.trained + trained, pace.masked + masked
        pace.step_s.append(clock() - begin)
        begin = clock()
    pace.seconds, pace.busy_s = sum(pace.step_s), busy() - before
    await pool.close()
    return pace


def path_cost_us(folder: str, batches: int = 8) -> float:
    """CPU time of one single-turn rollout of 8 tokens through the path, scripted engine included."""

    async def main() -> float:
        engines = [ScriptedEngine(Script(lambda turn: 8), stride=8) for _ in range(ENGINES)]
        pool = await rollout_path(engines, batches * GROUPS, BOUND, folder)
        begin = time.process_time()
        pool.start()
        while (batch := await pool.next_batch()) is not None:
            pool.published(batch.version + 1)
        return (time.process_time() - begin) / (batches * GROUPS * SAMPLES) * 1e6

    return run_virtual(main())


def figures() -> list[tuple[str, float, str]]:
    """(name, value, unit) of every figure."""
    with tempfile.TemporaryDirectory() as folder:
        sync, overlapped = run_virtual(measure(0, folder)), run_virtual(measure(BOUND, folder))
        costs = [path_cost_us(folder) for _ in range(5)]
    speed = {"sync": sync.trained / sync.seconds, "async": overlapped.trained / overlapped.seconds}
    return [
        ("pool/async_speedup", speed["async"] / speed["sync"], "x"),
        ("pool/sync_step_s", statistics.median(sync.step_s), "s (virtual)"),
        ("pool/async_step_s", statistics.median(overlapped.step_s), "s (virtual)"),
        ("pool/async_masked_frac", overlapped.masked / (overlapped.masked + overlapped.trained), "token share"),
        ("pool/sync_rollout_idle_frac", 1 - sync.busy_s / sync.seconds, "share"),
        ("pool/async_rollout_idle_frac", 1 - overlapped.busy_s / overlapped.seconds, "share"),
        ("pool/path_cost_us", statistics.median(costs), "us CPU per rollout"),
    ]


def main() -> None:
    for name, value, unit in figures():
        print(json.dumps({"name": name, "value": round(value, 4), "unit": unit}), flush=True)


if __name__ == "__main__":
    main()
