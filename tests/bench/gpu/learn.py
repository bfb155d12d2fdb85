"""A dense model learns to sort digits with asynchronous, partial rollouts: sampler on one GPU, trainer on the other.

usage: python -m tests.bench.gpu.learn learn|colocated|distill MODELS RUNS_ROOT [flags of the engine ...]
colocated: both on one GPU, taking turns. distill: the reverse KL to a teacher that can sort falls.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine.wire import EventReader, RunDir
from tests.bench.figures import report

STEPS = 120
FLAGS = [
    "--actor.model_name_or_path", "{models}/dense", "--tiny.warmup_steps", "0", "--placement.device", "cuda",
    "--fsdp.param_dtype", "bf16", "--vllm.kv_cache_gb", "8", "--vllm.gpu_memory_utilization", "0.1", "--vllm.max_num_seqs", "256",
    "--actor.adam.lr", "5e-5", "--rollout.batch_size", "32", "--rollout.n_samples_per_prompt", "8",
    "--train.max_steps", str(STEPS), "--train.routing_replay", "false", "--train.probe_every", "2",
    "--eval.eval_at_start", "true", "--eval.eval_at_end", "true", "--eval.steps", "-1", "--ckpt.disable_final_save", "true",
]  # fmt: skip
KINDS = {
    "learn": [],
    "colocated": ["--placement.colocate", "true"],
    "distill": ["--algo.advantage.estimator", "on_policy_distill", "--ref.model_name_or_path", "{models}/teacher",
                "--actor.adam.lr", "1e-4"],
}  # fmt: skip
SHOWN = (
    "time/step", "time/pause", "time/sleep", "time/weight_sync", "time/forward_backward", "time/wait_batch", "sync/gb_s",
    "perf/rollout_tok_s", "perf/train_tok_s", "staleness/mean",
)  # fmt: skip


def main() -> None:
    kind, models, root, *flags = sys.argv[1:]
    command = [sys.executable, "-m", "engine", "run", "demo", "--runs-root", root, "--run.name", kind]
    started = time.perf_counter()
    code = subprocess.run([*command, *[f.format(models=models) for f in FLAGS + KINDS[kind]], *flags]).returncode
    report(f"{kind}/wall_s", time.perf_counter() - started, "s")
    report(f"{kind}/exit_code", code, "code")
    run = RunDir(max(Path(root).glob(f"*-{kind}-*"), key=lambda path: path.stat().st_mtime))
    figures(kind, list(EventReader(run.attempt(1) / "events").poll()))
    sys.exit(code)


def figures(name: str, events: list[dict[str, Any]]) -> None:
    """What the run's own metrics say."""
    metrics = [e["metrics"] for e in events if e["kind"] == "metrics"]
    steps = [m for m in metrics if "time/step" in m]
    tenth = max(1, len(steps) // 10)
    report(f"{name}/steps", len(steps), "steps")
    for key, what in (("reward/mean", "reward"), ("loss/kl", "kl")):
        values = [float(m[key]) for m in steps if key in m]
        if values:
            first, last = statistics.mean(values[:tenth]), statistics.mean(values[-tenth:])
            report(f"{name}/{what}_start", first, "")
            report(f"{name}/{what}_end", last, "")
            report(f"{name}/{what}_gain", last - first, "")
    for key in ("mismatch/k3_kl", "offpolicy/k3_kl"):
        if found := [float(m[key]) for m in steps if key in m]:
            report(f"{name}/{key}_max", max(found), "nats")
    numbers = [float(v) for m in steps for v in m.values() if isinstance(v, (int, float)) or v in ("NaN", "nan")]
    report(f"{name}/not_finite", sum(not math.isfinite(n) for n in numbers), "values")
    for key in SHOWN:
        if found := [float(m[key]) for m in steps[tenth:] if key in m]:
            report(f"{name}/{key}", statistics.median(found), "s" if key.startswith("time/") else "")
    seconds = {key: sum(float(m[key]) for m in steps[tenth:]) for key in ("time/pause", "time/step")}
    report(f"{name}/pause_share", seconds["time/pause"] / seconds["time/step"], "share")
    evals = [{k: v for k, v in m.items() if k.startswith("eval/")} for m in metrics if any(k.startswith("eval/") for k in m)]
    print("evaluations", json.dumps(evals)[:600], flush=True)
    print("metrics of the last step", json.dumps(sorted(steps[-1])), flush=True)


if __name__ == "__main__":
    main()
