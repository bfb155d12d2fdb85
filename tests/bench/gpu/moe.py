"""A random mixture of experts of 1 B parameters: rollouts through the pool against bare vLLM, and routing replay.

usage: python -m tests.bench.gpu.moe MODELS RUNS_ROOT [flags of the engine ...]
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import string
import sys
import time
from pathlib import Path
from typing import Any

from engine import recipes, rundir
from engine.batch import prepare
from engine.commands import Inbox
from engine.data import load_prompts
from engine.main import Attempt
from engine.placement import Cluster
from engine.protocol import EventWriter
from engine.report import Progress
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.pool import RolloutPool
from engine.specs import pool_settings
from engine.sync.publish import publish
from tests.bench.figures import report
from tests.bench.gpu import actors

GROUPS, SAMPLES, NEW_TOKENS, PROMPT = 16, 16, 256, 32
ROUNDS = 3
HERE = Path(__file__).parent
FLAGS = [
    "--actor.model_name_or_path", "{models}/moe_1b", "--tiny.warmup_steps", "0", "--placement.device", "cuda",
    "--fsdp.param_dtype", "bf16", "--vllm.gpu_memory_utilization", "0.5", "--vllm.max_num_seqs", "256",
    "--vllm.enforce_eager", "false", "--actor.adam.lr", "0", "--data.input_key", "input",
    "--rollout.batch_size", str(GROUPS), "--rollout.n_samples_per_prompt", str(SAMPLES), "--rollout.num_runners", "4",
    "--rollout.max_new_tokens", str(NEW_TOKENS), "--data.max_len", str(NEW_TOKENS + PROMPT + 8), "--train.max_staleness", "0",
    "--data.prompt_dataset", "{prompts}", "--train.agent_path", str(HERE / "one_turn_agent.py"), "--eval.steps", "-1",
    "--eval.eval_at_start", "false", "--eval.eval_at_end", "false", "--eval.dataset", "",
]  # fmt: skip


def write_prompts(path: Path, count: int = 2000, length: int = PROMPT) -> Path:
    """JSONL of random letters, one token each."""
    chance = random.Random(0)
    lines = [json.dumps({"input": "".join(chance.choices(string.ascii_lowercase, k=length))}) for _ in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def start_attempt(models: str, root: Path, flags: list[str]) -> Attempt:
    """A prepared run and its actors, with the bench's classes in the place of the engine's."""
    prompts = write_prompts(root / "prompts.jsonl")
    recipe, config, problems = recipes.load("demo", [f.format(models=models, prompts=prompts) for f in FLAGS] + flags)
    assert config is not None and recipe is not None and not problems, problems
    run = rundir.prepare_run(root, config, recipe, name="moe")
    run.attempt(1).mkdir(parents=True, exist_ok=True)
    events = EventWriter(run, run.path.name, 1)
    progress = Progress(run.attempt(1) / "progress.json", {"started": time.time()})
    import engine.rollout.engine
    import engine.train.actor

    engine.rollout.engine.VllmEngine = actors.BenchEngine
    engine.train.actor.Trainer = actors.BenchTrainer
    return Attempt(run, 1, run.path.name, config, events, progress, Inbox(run, events), Cluster(config))


async def main() -> None:
    models, root, *flags = sys.argv[1:]
    job = start_attempt(models, Path(root), flags)
    cluster, config = job.cluster, job.config
    try:
        started = time.perf_counter()
        await asyncio.to_thread(cluster.start_ray)
        cluster.create_actors()
        await job._start_actors(Path(config.actor.model_name_or_path))
        report("moe/start_s", time.perf_counter() - started, "s")
        print("transfer:", job.progress.state.get("detail"), flush=True)
        prompts = load_prompts(config.data, seed=1, epochs=9)
        pool = RolloutPool(prompts, RunnerDispatch(cluster.runners), pool_settings(config))
        batch = await rollouts(cluster, pool)
        await replay(cluster, config, batch)
        await publications(cluster)
        report("moe/trainer_peak_gb", await cluster.trainers[0].peak_memory() / 1e9, "GB")
        await pool.close()
    finally:
        await cluster.shutdown()


async def rollouts(cluster: Cluster, pool: RolloutPool) -> Any:
    """Tokens per second through pool, runners and router against AsyncLLM alone, taking turns; returns the last batch."""
    chance = random.Random(1)
    groups = [[chance.randrange(40, 90) for _ in range(PROMPT)] for _ in range(GROUPS)]
    bare_prompts = [ids for ids in groups for _ in range(SAMPLES)]
    speeds: dict[str, list[float]] = {"bare": [], "pool": []}
    await cluster.engines[0].bare(bare_prompts, NEW_TOKENS, "warm-up")
    batch = None
    for number in range(ROUNDS + 1):
        started = time.perf_counter()
        if number == 0:
            pool.start()
        else:
            pool.published(number)
        batch = await pool.next_batch()
        seconds = time.perf_counter() - started
        tokens = sum(r.sampled for g in batch.groups for r in g.rollouts)
        if number:
            speeds["pool"].append(tokens / seconds)
        # The pool is at its bound now, so the engine has nothing else to do.
        seconds, tokens = await cluster.engines[0].bare(bare_prompts, NEW_TOKENS, str(number))
        if number:
            speeds["bare"].append(tokens / seconds)
    print("tokens/s", {k: [round(s) for s in v] for k, v in speeds.items()}, flush=True)
    report("moe/rollout_tok_s", statistics.median(speeds["pool"]), "tokens/s")
    report("moe/bare_tok_s", statistics.median(speeds["bare"]), "tokens/s")
    report("moe/rollout_share_of_bare", statistics.median(speeds["pool"]) / statistics.median(speeds["bare"]), "ratio")
    return batch


async def replay(cluster: Cluster, config: Any, batch: Any) -> None:
    """Mismatch of the experts before and after replay, what replay does to the gap, and what it costs."""
    order = prepare(batch, batch.version, config).order
    trainer = cluster.trainers[0]
    for name, value in (await trainer.gaps(order)).items():
        report(f"moe/gap_{name}", value, "")
    await trainer.timed_train(order, True)
    times: dict[bool, list[float]] = {True: [], False: []}
    metrics: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for routing in (True, False):
            seconds, found = await trainer.timed_train(order, routing)
            times[routing].append(seconds)
            metrics |= found
    print("train step, s", {f"replay {k}": [round(s, 3) for s in v] for k, v in times.items()}, flush=True)
    with_replay, without = (statistics.median(times[k]) for k in (True, False))
    report("moe/train_step_s", with_replay, "s")
    report("moe/replay_share_of_step", (with_replay - without) / with_replay, "share")
    for key in (
        "routing/mismatch_frac",
        "routing/token_mismatch_frac",
        "routing/replayed_mismatch_frac",
        "routing/coverage_frac",
    ):
        report(f"moe/{key}", metrics[key], "share")


async def publications(cluster: Cluster) -> None:
    """Publications to an idle engine."""
    manifest = await cluster.trainers[0].weight_manifest()
    reports = [await publish(cluster.trainers, cluster.engines, manifest, 10 + k) for k in range(ROUNDS + 1)][1:]
    report("moe/publish_pause_s", statistics.median(r.pause_seconds for r in reports), "s")
    report("moe/publish_transfer_s", statistics.median(r.transfer_seconds for r in reports), "s")
    report("moe/publish_gather_s", statistics.median(r.seconds - r.pause_seconds for r in reports), "s")
    report("moe/publish_bytes", reports[0].bytes / 1e9, "GB")


if __name__ == "__main__":
    asyncio.run(main())
