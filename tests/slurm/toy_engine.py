"""A stand-in for the engine on the real run directory: trains numbered prompts, saves, resumes, obeys signals.

It lets the tests of the job's life run in seconds, without Ray and vLLM. Called as the engine is: `attempt RUNDIR --attempt N`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from engine.lifeline import hold
from engine.protocol import CheckpointEvent, EventWriter, MetricsEvent, PhaseEvent, Progress, write_record
from engine.wire import CHECKPOINT_MARK, EXIT_COMPLETED, EXIT_FAILED, EXIT_STOPPED, RunDir

GROUPS = 4


def main() -> int:
    hold()
    run, number = RunDir(sys.argv[2]), int(sys.argv[4])
    plan = json.loads((run.path / "toy.json").read_text())
    stop: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda received, _frame: stop.append(received))
    writer = EventWriter(run, run.path.name, number)
    step = newest(run)
    report(run, number, step, plan, "running")
    writer.emit(PhaseEvent, phase="running", step=step)
    (run.attempt(number) / "toy.pid").write_text(str(os.getpid()))
    crash = plan.get("crash", {}).get(str(number))
    try:
        while step < plan["steps"]:
            time.sleep(plan["seconds"])
            if stop:
                save(run, writer, step, "stop")
                report(run, number, step, plan, "stopping", detail=f"stopped after step {step}", saved=step)
                return EXIT_STOPPED
            step += 1
            prompts = [f"toy:{step * GROUPS + i}@0" for i in range(GROUPS)]
            writer.emit(MetricsEvent, step=step, version=step, metrics={"reward/mean": step / plan["steps"]}, prompts=prompts)
            if step % plan.get("save", 5) == 0:
                save(run, writer, step, "interval")
            report(run, number, step, plan, "running", saved=newest(run))
            if crash == step:
                os.kill(os.getpid(), signal.SIGKILL)
    except OSError as error:
        report(run, number, step, plan, "stopping", error=f"{type(error).__name__}: {error.strerror}")
        return EXIT_FAILED
    save(run, writer, step, "end")
    report(run, number, step, plan, "stopping", saved=step)
    return EXIT_COMPLETED


def newest(run: RunDir) -> int:
    steps = [int(p.parent.name.removeprefix("step-")) for p in run.checkpoints.glob(f"step-*/{CHECKPOINT_MARK}")]
    return max(steps, default=0)


def save(run: RunDir, writer: EventWriter, step: int, why: str) -> None:
    folder = run.checkpoints / f"step-{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_bytes(os.urandom(200_000))
    (folder / CHECKPOINT_MARK).touch()
    writer.emit(CheckpointEvent, step=step, version=step, path=str(folder), seconds=0.01, bytes=200_000, why=why)


def report(run: RunDir, number: int, step: int, plan: dict, phase: str, detail: str = "", error: str | None = None,
           saved: int | None = None) -> None:  # fmt: skip
    record = Progress(
        phase=phase, detail=detail, step=step, version=step, last_checkpoint=saved, max_steps=plan["steps"], error=error
    )
    try:
        write_record(Path(run.attempt(number) / "progress.json"), record)
    except OSError:
        if error is None:
            raise


if __name__ == "__main__":
    sys.exit(main())
