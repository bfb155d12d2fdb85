"""Writes tests/golden: a small run directory with two attempts that both halves of the project are tested against.

`python -m tests.make_golden [FOLDER]`. Clock and identifiers are fixed, so a second run gives the same bytes.
"""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from engine import protocol, wire

GOLDEN = Path(__file__).parent / "golden"
RUN_ID = "20261130-101502-golden-k3f9"
START = 1_796_033_702.0
FIRST_ATTEMPT_STEPS, RESUMED_AFTER, LAST_STEP = 6, 4, 9
NAN, INF = float("nan"), float("inf")
# Only what differs from the defaults, so that a new field of the tree does not change the golden bytes.
RUN_TOML = f"""\
[recipe]
title = "Golden \\"run\\""
task = "one-digit sums"
model = "tiny Qwen3-MoE"
hardware = "2 CPU cores"

[actor]
model_name_or_path = "tiny:qwen3_moe"

[actor.adam]
lr = 0.001

[data]
prompt_dataset = ["prompts.jsonl"]
label_key = "answer"
max_len = 64

[algo.advantage]
estimator = "grpo"
is_correction_level = "token"

[rollout]
batch_size = 2
n_samples_per_prompt = 4
max_new_tokens = 8

[train]
agent_path = "agent/sums.py"
max_steps = {LAST_STEP}
max_staleness = 2
routing_replay = true

[placement]
device = "cpu"
"""


def fixed_clock() -> Iterator[float]:
    tick = 0
    while True:
        yield START + tick * 0.25
        tick += 1


def step_metrics(step: int, attempt: int) -> dict[str, object]:
    """Every shape a value can have: number, NaN, infinities, list, label; `mismatch/*` only at every second step."""
    metrics: dict[str, object] = {
        "reward/mean": round(0.1 * step + 0.01 * attempt, 4),
        "reward/std": round(0.4 - 0.02 * step, 4),
        "reward/max": 1.0,
        "queue/depth": step % 3,
        "queue/capacity": 6,
        "queue/in_flight_groups": 2,
        "staleness/mean": round(0.5 + 0.1 * (step % 3), 4),
        "staleness/max": min(2, step - 1),
        "staleness/hist": [10 + step, 6, step % 2],
        "routing/mismatch_frac": round(0.02 + 0.001 * step, 4),
        "routing/layer_mismatch": [0.01, round(0.03 + 0.001 * step, 4)],
        "loss/policy": round(-0.01 * step, 4),
        "optim/grad_norm": round(0.9 - 0.05 * step, 4),
        "optim/lr": 0.001,
        "time/step": round(1.5 + 0.1 * (step % 2), 4),
        "perf/rollout_tok_s": 1800.0 + 10 * step,
        "perf/train_tok_s": 2400 + 5 * step,
        "engine/running/min": 3,
        "engine/running/mean": 3.5,
        "engine/running/max": 4,
        "engine/running/worst": "engine-1",
        "rollout/dropped/stale": step % 2,
        "env/turns": 1.0,
    }
    if step % 2 == 0:
        metrics |= {"mismatch/k3_kl": 2.5e-05, "mismatch/abs_diff": 0.0012}
    if step == 3:
        metrics |= {"loss/policy": NAN, "optim/grad_norm": INF, "reward/max": -INF, "staleness/hist": [10, NAN, 0]}
    return metrics


def write_step(events: protocol.EventWriter, step: int, attempt: int) -> None:
    prompts = [f"prompts.jsonl:{2 * step + i}@0" for i in range(2)]
    events.emit(protocol.MetricsEvent, step=step, version=step - 1, metrics=step_metrics(step, attempt), prompts=prompts)
    events.emit(protocol.SyncEvent, step=step, version=step, bytes=1_048_576, seconds=0.05, pause_seconds=0.03, held=step % 4)


def write_checkpoint(events: protocol.EventWriter, step: int, why: str) -> None:
    events.emit(protocol.CheckpointEvent, step=step, version=step, path=f"checkpoints/step-{step:06d}", seconds=0.4,
                bytes=3_145_728, why=why)  # fmt: skip


def write_evaluation(events: protocol.EventWriter, step: int, score: float) -> None:
    metrics = {"eval/sums/score_mean": score, "eval/sums/exact_frac": score, "eval/sums/rollouts": 200}
    events.emit(protocol.MetricsEvent, step=step, version=step, metrics=metrics)


def first_attempt(run: wire.RunDir) -> None:
    """Six steps, a checkpoint after the fourth, then killed in the middle of a line."""
    number = run.claim_attempt()
    supervisor = wire.LogWriter(run, RUN_ID, number, "supervisor")
    supervisor.write("phase", phase="starting", detail="attempt 1")
    events = protocol.EventWriter(run, RUN_ID, number, rotate=4096)
    events.emit(protocol.PhaseEvent, phase="running", step=0, version=0)
    write_evaluation(events, 0, 0.1)
    for step in range(1, FIRST_ATTEMPT_STEPS + 1):
        write_step(events, step, number)
        if step == 2:
            answer = {"who": "ada", "args": {"key": "rollout.temperature", "value": 0.9}}
            events.emit(protocol.ControlEvent, step=step, id="c-1", name="set", ok=True, message="temperature is 0.9", **answer)
        if step == 3:
            events.emit(protocol.AlertEvent, step=step, rule="not_finite", message="loss/policy is NaN")
            events.emit(protocol.FaultEvent, step=step, what="rollout_failed", detail="timeout in step(), started again")
        if step == RESUMED_AFTER:
            write_checkpoint(events, step, "save_steps")
    torn = wire.encode_line({"protocol": 1, "run": RUN_ID, "attempt": number, "seq": events.seq, "kind": "metrics"})[:-25]
    last = sorted(events.folder.iterdir())[-1]
    last.write_bytes(last.read_bytes() + torn)
    supervisor.write("fault", what="controller_died", detail="killed by signal 9", fatal=True)
    supervisor.write("phase", phase="failed", detail="killed by signal 9")
    protocol.write_record(run.attempt(number) / "exit.json", protocol.ExitRecord(
        run=RUN_ID, attempt=number, reason="crashed", detail="killed by signal 9", signal=9, step=FIRST_ATTEMPT_STEPS,
        resumable=True, t=START + 30))  # fmt: skip


def second_attempt(run: wire.RunDir) -> None:
    """Resumes after step 4, so that it supersedes steps 5 and 6, and completes."""
    number = run.claim_attempt()
    supervisor = wire.LogWriter(run, RUN_ID, number, "supervisor")
    supervisor.write("phase", phase="starting", detail="attempt 2")
    events = protocol.EventWriter(run, RUN_ID, number, rotate=4096)
    events.emit(protocol.NoteEvent, step=RESUMED_AFTER, version=RESUMED_AFTER, text="resumed from step 4")
    events.emit(protocol.PhaseEvent, phase="running", step=RESUMED_AFTER, version=RESUMED_AFTER)
    for step in range(RESUMED_AFTER + 1, LAST_STEP + 1):
        write_step(events, step, number)
        if step == 7:
            events.emit(protocol.ControlEvent, step=step, id="c-2", name="evaluate", ok=False, message="no eval.dataset is set")
            events.emit(protocol.PhaseEvent, step=step, phase="paused", detail="by ada")
            events.emit(protocol.PhaseEvent, step=step, phase="running")
    write_checkpoint(events, LAST_STEP, "end")
    write_evaluation(events, LAST_STEP, 0.8)
    events.emit(protocol.PhaseEvent, step=LAST_STEP, version=LAST_STEP, phase="completed")
    supervisor.write("phase", phase="completed", detail="9 steps")
    protocol.write_record(run.attempt(number) / "progress.json", protocol.Progress(
        phase="completed", step=LAST_STEP, version=LAST_STEP, last_checkpoint=LAST_STEP, max_steps=LAST_STEP))  # fmt: skip
    protocol.write_record(run.attempt(number) / "exit.json", protocol.ExitRecord(
        run=RUN_ID, attempt=number, reason="completed", code=0, step=LAST_STEP, resumable=True, t=START + 60))  # fmt: skip
    log = "vLLM engine 0 ready\n\x1b[31mwarning:\x1b[0m slow file system\r\nstep 9 of 9\n"
    (run.attempt(number) / "logs" / "engine.log").write_text(log)


def trace(index: int) -> protocol.TraceRollout:
    """`7-3=4` in two turns over one version border; one token masked, one with another expert in layer 1."""
    pieces = ["7", "-", "3", "=", "4", "\x1b[2J", "ok?", "é", "<|im_end|>"]
    mask = [0, 0, 0, 0, 1, 0, 0, 1, 1]
    per_token = [value if sampled else 0.0 for value, sampled in zip([-0.25, -0.5, -0.75] * 3, mask)]
    segment = protocol.TraceSegment(
        token_ids=[7, 12, 3, 13, 4, 15, 16, 17, 1], pieces=pieces, mask=mask, logprobs=per_token,
        versions=[-1, -1, -1, -1, 3, -1, -1, 4, 4], train_logprobs=[round(0.9 * v, 4) for v in per_token],
        kept=[0, 0, 0, 0, 1, 0, 0, 0, 1], routing_mismatch=[[], [], [], [], [1], [], [], [], []])  # fmt: skip
    return protocol.TraceRollout(
        run=RUN_ID, attempt=1, step=4, rollout_id=f"g4-{index}", prompt_id="prompts.jsonl:8@0", group_id="g4",
        version=4, max_staleness=2, label="4",
        reward=NAN if index == 3 else float(index % 2), score=float(index % 2), advantage=-1.0 if index == 0 else 1.0, turns=2,
        truncated=index == 2, info={"turns": 2.0}, segments=[segment])  # fmt: skip


def write_golden(folder: Path) -> None:
    run = wire.RunDir(folder).create()
    run.run_toml.write_text(RUN_TOML)
    (run.agent / "sums.py").write_text("class AgentRunner:\n    pass\n")
    protocol.write_record(run.meta, protocol.Meta(
        run=RUN_ID, name="golden", created=START, recipe="golden", group="examples", user="ada", host="login1",
        commit="0123456789abcdef0123456789abcdef01234567", command=["molt-tui", "launch", "golden"],
        versions={"molt-tui": "0.1.0", "torch": "2.13.0"}, tags=["demo"]))  # fmt: skip
    first_attempt(run)
    second_attempt(run)
    lines = b"".join(wire.encode_line(trace(index).model_dump(exclude_none=True)) for index in range(4))
    (run.rollouts / "1-4.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    for action, text in (("note", "NaN at step 3, look at the batch"), ("tag", "keep"), ("tag", "odd"), ("untag", "odd")):
        wire.append_line(run.notes, {"t": START + 90, "who": "ada", "action": action, "text": text})
    protocol.write_record(run.status, protocol.Status(
        run=RUN_ID, attempt=2, beat=120, phase="completed", step=LAST_STEP, version=LAST_STEP, last_checkpoint=LAST_STEP,
        max_steps=LAST_STEP, host="node1", pid=4242, t=START + 60))  # fmt: skip


def regenerate(folder: Path) -> None:
    """Replace `folder` by a fresh golden run directory."""
    shutil.rmtree(folder, ignore_errors=True)
    with mock.patch("time.time", fixed_clock().__next__):
        write_golden(folder)


if __name__ == "__main__":
    regenerate(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
