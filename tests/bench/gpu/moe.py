"""A random mixture of experts of 1 B parameters: rollouts through the pool against bare vLLM, routing replay,
and on two GPUs the whole loop, synchronous and asynchronous, with long-tailed lengths.

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
from engine.config import Config
from engine.data import load_prompts
from engine.main import Attempt
from engine.placement import Cluster
from engine.protocol import EventWriter, send_command
from engine.report import Progress
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.pool import Batch, RolloutPool
from engine.wire import EventReader
from tests.bench.figures import report, wait_for_turn
from tests.bench.gpu import actors
from tests.bench.gpu.coin_agent import LONGEST

BATCHES, GROUPS, SAMPLES, NEW_TOKENS, PROMPT = 4, 16, 16, 256, 32
ROLLOUT_ROUNDS = 2
BOUND, LEFT_OUT, SYNCHRONOUS, ASYNCHRONOUS = 3, 4, 4, 10
AGENT = Path(__file__).with_name("coin_agent.py")
FLAGS = [
    "--actor.model_name_or_path", "{models}/moe_1b", "--tiny.warmup_steps", "0", "--placement.device", "cuda",
    "--fsdp.param_dtype", "bf16", "--fsdp.packing_samples", "true", "--train.logprob_chunk_tokens", "16192",
    "--vllm.kv_cache_gb", "40", "--vllm.gpu_memory_utilization", "0.1", "--vllm.max_num_seqs", "256",
    "--vllm.enforce_eager", "false", "--actor.adam.lr", "1e-6", "--actor.lr_scheduler", "constant",
    "--data.input_key", "input", "--data.prompt_dataset", "{tailed}", "--data.max_len", str(LONGEST + PROMPT + 32),
    "--rollout.batch_size", "20", "--rollout.n_samples_per_prompt", "8", "--rollout.max_new_tokens", "8",
    "--rollout.num_runners", "4", "--train.agent_path", str(AGENT), "--train.max_staleness", "0", "--train.max_steps", "200",
    "--train.routing_replay", "true", "--train.probe_every", "1000", "--eval.steps", "-1", "--eval.eval_at_start", "false",
    "--eval.eval_at_end", "false", "--eval.dataset", "", "--ckpt.disable_final_save", "true", "--trace.rollouts_per_step", "0",
]  # fmt: skip


def write_prompts(path: Path, tail: bool, count: int = 4000) -> Path:
    """JSONL of random letters, one token each."""
    chance = random.Random(0)
    rows = [{"input": "".join(chance.choices(string.ascii_lowercase, k=PROMPT)), "tail": tail} for _ in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start_attempt(models: str, root: Path, flags: list[str]) -> Attempt:
    """A prepared run and its actors, with the bench's classes in the place of the engine's."""
    tailed = write_prompts(root / "tailed.jsonl", tail=True)
    recipe, config, problems = recipes.load("demo", [f.format(models=models, tailed=tailed) for f in FLAGS] + flags)
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
        model = Path(config.actor.model_name_or_path)
        info = await job._start_actors(model)
        report("moe/start_s", time.perf_counter() - started, "s")
        print("transfer:", job.progress.state.get("detail"), flush=True)
        await asyncio.to_thread(wait_for_turn)
        batch, fixed = await rollouts(cluster, config, Path(root))
        await replay(cluster, fixed, batch)
        if not config.placement.colocate:
            await whole_loop(job, model, info)
    finally:
        await cluster.shutdown()


def with_fixed_lengths(config: Config, root: Path) -> Config:
    """The same run with one turn of NEW_TOKENS per episode."""
    prompts = write_prompts(root / "fixed.jsonl", tail=False)
    return config.model_copy(update={
        "data": config.data.model_copy(update={"prompt_dataset": (str(prompts),), "max_samples": BATCHES * GROUPS}),
        "rollout": config.rollout.model_copy(
            update={"batch_size": GROUPS, "n_samples_per_prompt": SAMPLES, "max_new_tokens": NEW_TOKENS}
        ),
        "train": config.train.model_copy(update={"max_staleness": BATCHES - 1}),
    })  # fmt: skip


async def rollouts(cluster: Cluster, config: Config, root: Path) -> tuple[Batch, Config]:
    """Tokens per second through pool, runners and router against AsyncLLM alone, taking turns; returns the last batch.

    All requests of BATCHES batches at once on either side: more than the engine runs at a time, as in an asynchronous run.
    """
    config = with_fixed_lengths(config, root)
    chance, engine = random.Random(1), cluster.engines[0]
    groups = [[chance.randrange(40, 90) for _ in range(PROMPT)] for _ in range(BATCHES * GROUPS)]
    prompts = [ids for ids in groups for _ in range(SAMPLES)]
    speeds: dict[str, list[float]] = {"bare": [], "pool": []}
    await engine.bare(prompts[: GROUPS * SAMPLES], NEW_TOKENS, "warm-up")
    for number in range(ROLLOUT_ROUNDS):
        stream = load_prompts(config.data, seed=number, epochs=1)
        pool = RolloutPool(stream, RunnerDispatch(cluster.runners), config)
        started = time.perf_counter()
        pool.start()
        batches = []
        for version in range(BATCHES):
            batches.append(await pool.next_batch())
            pool.published(version + 1)
        seconds = time.perf_counter() - started
        speeds["pool"].append(sum(r.sampled for b in batches if b for g in b.groups for r in g.rollouts) / seconds)
        await pool.close()
        seconds, tokens = await engine.bare(prompts, NEW_TOKENS, str(number))
        speeds["bare"].append(tokens / seconds)
    print("tokens/s", {k: [round(s) for s in v] for k, v in speeds.items()}, flush=True)
    through_pool, bare = (statistics.mean(speeds[k]) for k in ("pool", "bare"))
    report("moe/rollout_tok_s", through_pool, "tokens/s")
    report("moe/bare_tok_s", bare, "tokens/s")
    report("moe/rollout_share_of_bare", through_pool / bare, "ratio")
    assert batches[-1] is not None
    return batches[-1], config


async def replay(cluster: Cluster, config: Config, batch: Batch) -> None:
    """Mismatch of the experts before and after replay, and what replay does to the gap."""
    order = prepare(batch, batch.version, config).order
    trainer = cluster.trainers[0]
    gaps = await trainer.gaps(order)
    for name, value in gaps.items():
        report(f"moe/gap_{name}", value, "")
    report("moe/k3_replayed_over_live", gaps["replayed_k3_kl"] / gaps["live_k3_kl"], "ratio")
    metrics = (await trainer.train(order)).metrics
    for key in ("mismatch_frac", "token_mismatch_frac", "replayed_mismatch_frac", "coverage_frac"):
        report(f"moe/routing/{key}", metrics[f"routing/{key}"], "share")


async def whole_loop(job: Attempt, model: Path, info: dict[str, Any]) -> None:
    """The controller's own loop, first at staleness bound 0, then at BOUND; steps right after the change are left out."""
    controller = await job._controller(model, info)
    work = asyncio.create_task(controller.run())
    reader = EventReader(job.run.attempt(1) / "events")
    seen: list[dict[str, Any]] = []

    async def wait_for(count: int) -> None:
        while len(seen) < count:
            if work.done():
                work.result()
                raise RuntimeError("the loop ended")
            await asyncio.sleep(0.1)
            seen.extend(e["metrics"] for e in reader.poll() if e["kind"] == "metrics" and "time/step" in e["metrics"])

    await wait_for(1 + SYNCHRONOUS)
    synchronous = seen[1 : 1 + SYNCHRONOUS]
    send_command(job.run, "set", {"train.max_staleness": BOUND})
    start = len(seen) + LEFT_OUT
    await wait_for(start + ASYNCHRONOUS)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    overlap(synchronous, seen[start : start + ASYNCHRONOUS])


def overlap(synchronous: list[dict[str, Any]], asynchronous: list[dict[str, Any]]) -> None:
    """Trained tokens per second of both, and what the engines lose by publications."""
    speeds = []
    for name, steps in (("synchronous", synchronous), ("asynchronous", asynchronous)):
        keys = [k for k in steps[0] if k.startswith(("time/", "sync/", "perf/", "staleness/m", "offpolicy/"))]
        mean = {k: statistics.mean(float(m.get(k, 0.0)) for m in steps) for k in keys}
        print(f"{name} steps", {k: round(v, 4) for k, v in mean.items()}, flush=True)
        speeds.append(sum(m["time/step"] * m["perf/kept_tok_s"] for m in steps) / sum(m["time/step"] for m in steps))
        report(f"overlap/{name}_step_s", mean["time/step"], "s")
        report(f"overlap/{name}_kept_tok_s", speeds[-1], "tokens/s")
        report(f"overlap/{name}_pause_s", mean["time/pause"], "s")
        report(f"overlap/{name}_pause_share", mean["time/pause"] / mean["time/step"], "share")
    report("overlap/speedup", speeds[1] / speeds[0], "ratio")


if __name__ == "__main__":
    asyncio.run(main())
