"""Writes a plausible finished run directory with made-up numbers, for tests: `python tests/make_healthy.py FOLDER`."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from engine.metrics import spread
from engine.wire import PROTOCOL, RunDir, encode_line, write_atomic

STEPS, START, STEP_S = 160, 38.0, 1.6
ORIGIN = 1_796_000_000.0
RUN_ID = "20261130-090000-healthy-0000"
RUN_TOML = """\
[recipe]
title = "Sums and differences with a tiny MoE"
task = "one-digit sums and differences"
model = "tiny:qwen3_moe"
hardware = "2 CPU cores"

[actor]
model_name_or_path = "tiny:qwen3_moe"

[actor.adam]
lr = 0.001

[data]
prompt_dataset = ["reasoning-gym:chain_sum"]

[algo.advantage]
estimator = "grpo"
is_correction_level = "token"

[vllm]
num_engines = 2

[rollout]
batch_size = 32
n_samples_per_prompt = 16

[train]
agent_path = "agent/sums.py"
max_steps = 160
max_staleness = 2
routing_replay = true
"""
AGENT = '''"""Rewards an exact answer."""

from engine.agents import Env, Result, StepEnvRunner


class Sums(Env):
    async def step(self, state, **kwargs):
        return Result(reward=float(state["action_text"].strip() == state["label"]))


class AgentRunner(StepEnvRunner):
    def __init__(self):
        super().__init__(Sums)
'''


def metrics(step: int, dice: random.Random) -> dict[str, Any]:
    """What a healthy step reports: a reward that rises, a small stable mismatch, balanced sides."""
    skill = 1 / (1 + math.exp(-(step - 70) / 22))
    reward = min(0.99, 0.09 + 0.82 * skill + dice.gauss(0, 0.025))
    old = [max(0.0, x) for x in (0.62 + dice.gauss(0, 0.04), 0.31, 0.07 + dice.gauss(0, 0.02))]
    tokens = [round(3000 * x / sum(old)) for x in old]
    masked_low, masked_high = 0.008 + abs(dice.gauss(0, 0.003)), 0.014 + abs(dice.gauss(0, 0.004))
    wait, train = abs(dice.gauss(0.14, 0.05)), 1.05 + dice.gauss(0, 0.05)
    parts = {"time/wait_batch": wait, "time/prepare": 0.05, "time/forward_backward": train, "time/optim": 0.09,
             "time/weight_sync": 0.13 + abs(dice.gauss(0, 0.02)), "time/pause": 0.03, "time/probe": 0.06}  # fmt: skip
    total = sum(parts.values()) - parts["time/pause"] + 0.02
    mismatch = 0.034 + abs(dice.gauss(0, 0.004))
    return {
        "queue/depth": dice.choice((18, 22, 27, 31, 36, 40)), "queue/capacity": 96,
        "queue/in_flight_groups": 44 + dice.randint(-6, 6), "queue/in_flight_rollouts": 640 + dice.randint(-80, 80),
        "staleness/hist": tokens,
        "staleness/mean": (tokens[1] + 2 * tokens[2]) / sum(tokens), "staleness/p95": 2 if tokens[2] > 150 else 1,
        "staleness/max": 2, "staleness/masked_tokens": 0, "staleness/dropped_rollouts": 0,
        "staleness/spanning_rollouts": dice.randint(20, 60), "is/ratio_mean": 1 + dice.gauss(0, 0.002),
        "is/masked_frac": masked_low + masked_high, "is/masked_low_frac": masked_low, "is/masked_high_frac": masked_high,
        "is/ess_frac": 0.95 + dice.gauss(0, 0.008), "is/kept_grad_frac": 0.975 + dice.gauss(0, 0.004),
        "mismatch/k3_kl": 1.3e-4 * math.exp(dice.gauss(0, 0.2)), "mismatch/abs_diff": 0.008 + dice.gauss(0, 0.0006),
        "mismatch/max_prob_diff": 0.06 + abs(dice.gauss(0, 0.01)), "mismatch/bitwise_frac": 0.02,
        "offpolicy/k3_kl": 2.4e-3 * math.exp(dice.gauss(0, 0.25)), "offpolicy/abs_diff": 0.031 + dice.gauss(0, 0.003),
        "routing/mismatch_frac": mismatch, "routing/token_mismatch_frac": 1.8 * mismatch, "routing/replayed_mismatch_frac": 0,
        "routing/coverage_frac": 0.998, "routing/missing_frac": 0.002, "routing/layer_mismatch": [0.7 * mismatch, 1.3 * mismatch],
        "reward/mean": reward, "reward/std": math.sqrt(max(0.0, reward * (1 - reward))), "reward/max": 1.0,
        "reward/zero_std_group_frac": 0.15 + 0.5 * abs(reward - 0.5), "rollout/response_len_mean": 2.9 - 0.8 * skill,
        "rollout/turns_mean": 1.0, "rollout/truncated_frac": 0.02 * (1 - skill), "rollout/failed": 0, "rollout/retried": 0,
        "loss/policy": -0.03 + 0.02 * skill + dice.gauss(0, 0.006), "loss/entropy": 1.4 - 0.9 * skill + dice.gauss(0, 0.02),
        "optim/grad_norm": 0.9 - 0.4 * skill + abs(dice.gauss(0, 0.08)), "optim/lr": 1e-3 * min(1.0, step / 5),
        "time/step": total, **parts, "time/unaccounted_frac": 0.02 / total, "time/trainer_idle_frac": wait / total,
        "time/rollout_idle_frac": abs(dice.gauss(0.06, 0.02)), "perf/rollout_tok_s": 1900 + dice.gauss(0, 60),
        "perf/train_tok_s": 6800 + dice.gauss(0, 150), "perf/kept_tok_s": 1820 + dice.gauss(0, 50), "sync/bytes": 1_310_720,
        "sync/gb_s": 0.03, **engines(step, dice),
    }  # fmt: skip


def engines(step: int, dice: random.Random) -> dict[str, Any]:
    def two(low: float, high: float) -> dict[str, float]:
        return {"engine 0": dice.uniform(low, high), "engine 1": dice.uniform(low, high)}

    running = {name: float(round(value)) for name, value in two(280, 360).items()}
    return {
        **spread("engine/running", running), **spread("engine/waiting", {"engine 0": 0.0, "engine 1": 0.0}),
        **spread("engine/kv_frac", two(0.18, 0.34)), **spread("engine/preemptions", {"engine 0": 0.0, "engine 1": 0.0}),
        **spread("engine/version", {"engine 0": step, "engine 1": step}, worst_is_high=False),
        **spread("engine/restarts", {"engine 0": 0.0, "engine 1": 0.0}),
        **spread("host/cpu", {"local": dice.uniform(0.9, 0.99)}), **spread("host/mem", {"local": 0.37}),
    }  # fmt: skip


def rollout(step: int, index: int, dice: random.Random) -> dict[str, Any]:
    a, b = dice.randint(1, 9), dice.randint(1, 9)
    prompt, right = f"{a}+{b}=", str(a + b)
    good = dice.random() < 0.09 + 0.82 / (1 + math.exp(-(step - 70) / 22))
    answer = right if good else str(dice.randint(0, 18))
    pieces = [*prompt, *answer, "<end>"]
    mask = [0] * len(prompt) + [1] * (len(answer) + 1)
    logprobs = [-abs(dice.gauss(0.3, 0.2)) if m else 0.0 for m in mask]
    versions = [max(0, step - 1 - dice.choice((0, 0, 1))) if m else -1 for m in mask]
    segment = {"token_ids": list(range(len(pieces))), "pieces": pieces, "mask": mask, "logprobs": logprobs,
               "versions": sorted(versions), "train_logprobs": [x + dice.gauss(0, 0.01) if x else 0.0 for x in logprobs],
               "kept": mask}  # fmt: skip
    return {"run": RUN_ID, "attempt": 1, "step": step, "rollout_id": f"{step}-{index}", "prompt_id": f"chain_sum:{step}@0",
            "group_id": f"g{step}", "reward": float(answer == right), "score": float(answer == right), "turns": 1,
            "segments": [segment]}  # fmt: skip


class Recording:
    """Collects the lines of one attempt with made-up times."""

    def __init__(self) -> None:
        self.lines: dict[str, list[bytes]] = {"events": [], "supervisor": []}
        self.log: list[str] = []

    def add(self, stream: str, t: float, kind: str, **fields: Any) -> None:
        lines = self.lines[stream]
        head = {"protocol": PROTOCOL, "run": RUN_ID, "attempt": 1, "seq": len(lines), "t": ORIGIN + t, "kind": kind}
        lines.append(encode_line({**head, **fields}))


def make(folder: Path, seed: int = 7) -> RunDir:
    """The whole directory below `folder`."""
    dice, run, record = random.Random(seed), RunDir(folder).create(), Recording()
    record.add("supervisor", 0.0, "phase", phase="starting", detail="attempt 1")
    record.log += ["controller: 2 engines, 1 trainer rank, 2 runners", "engine 0: loading tiny:qwen3_moe",
                   "engine 1: loading tiny:qwen3_moe", "trainer: 0.3 M parameters, 2 MoE layers, fp32 masters"]  # fmt: skip
    record.add("events", START, "phase", step=0, version=0, phase="running", detail="")
    record.add("events", START + 1, "eval", step=0, version=0, metrics={"eval/sums/exact_frac": 0.085, "eval/sums/rollouts": 200})
    t = START + 2
    for step in range(1, STEPS + 1):
        values = metrics(step, dice)
        t += STEP_S + dice.gauss(0, 0.05)
        record.add("events", t, "metrics", step=step, version=step - 1, metrics=values,
                   prompts=[f"chain_sum:{32 * step + i}@0" for i in range(4)])  # fmt: skip
        record.add("events", t + 0.1, "sync", step=step, version=step, bytes=1_310_720, seconds=0.13, pause_seconds=0.03,
                   held=dice.randint(200, 340))  # fmt: skip
        record.log.append(f"step {step} reward {values['reward/mean']:.3f} grad {values['optim/grad_norm']:.2f}")
        if step % 40 == 0:
            score = round(values["reward/mean"], 2)
            record.add("events", t + 0.2, "eval", step=step, version=step,
                       metrics={"eval/sums/exact_frac": score, "eval/sums/rollouts": 200})  # fmt: skip
            record.add("events", t + 0.3, "checkpoint", step=step, version=step, path=f"checkpoints/{step}", seconds=0.3,
                       bytes=4_100_000, why="every 40 steps")  # fmt: skip
        if step % 8 == 0:
            lines = [json.dumps(rollout(step, i, dice)) for i in range(8)]
            write_atomic(run.rollouts / f"1-{step}.jsonl.gz", gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))
    record.add("supervisor", t + 1.5, "phase", phase="completed", detail=f"{STEPS} steps")
    write(run, record, t + 1.5)
    return run


def write(run: RunDir, record: Recording, end: float) -> None:
    number = run.claim_attempt()
    for stream, lines in record.lines.items():
        folder = run.attempt(number) / stream
        folder.mkdir(exist_ok=True)
        (folder / "000000.jsonl").write_bytes(b"".join(lines))
    (run.attempt(number) / "logs" / "engine.log").write_text("\n".join(record.log) + "\n")
    run.run_toml.write_text(RUN_TOML)
    (run.agent / "sums.py").write_text(AGENT)
    ending = {"protocol": PROTOCOL, "run": RUN_ID, "attempt": 1, "t": ORIGIN + end, "step": STEPS}
    write_atomic(run.attempt(number) / "exit.json",
                 encode_line({**ending, "reason": "completed", "detail": f"{STEPS} steps", "code": 0}))  # fmt: skip
    write_atomic(run.status, encode_line({**ending, "phase": "completed", "beat": 300, "version": STEPS, "max_steps": STEPS}))
    write_atomic(run.meta, encode_line({"protocol": PROTOCOL, "run": RUN_ID, "name": "healthy", "created": ORIGIN,
                                        "recipe": "demo", "tags": ["moe", "r3"], "cluster": "local"}))  # fmt: skip


if __name__ == "__main__":
    make(Path(sys.argv[1]))
