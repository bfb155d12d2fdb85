"""A run that lives in this process: a beat and one training step every `pace_s`, until it is closed."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from engine import protocol
from engine.wire import RunDir


class GrowingRun:
    """As a context: starts at once; leaves a completed run."""

    def __init__(self, runs_root: Path, name: str, pace_s: float = 0.1, max_steps: int = 100_000) -> None:
        runs_root.mkdir(parents=True, exist_ok=True)
        self.run = RunDir(runs_root / name).create()
        protocol.write_record(self.run.meta, protocol.Meta(run=name, name=name, created=time.time(), recipe="demo"))
        self.name, self.pace_s, self.max_steps, self.step = name, pace_s, max_steps, 0
        self.attempt = self.run.claim_attempt()
        self.writer = protocol.EventWriter(self.run, name, self.attempt)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        self.writer.emit(protocol.PhaseEvent, phase="running")
        while True:
            self.advance()
            if self._stop.wait(self.pace_s):
                return

    def advance(self) -> None:
        self.step += 1
        reward = 1 - math.exp(-self.step / 50)
        values = {
            "reward/mean": reward,
            "queue/depth": 3.0,
            "queue/capacity": 8.0,
            "time/step": 1.0,
            "time/trainer_idle_frac": 0.1,
        }
        self.writer.emit(protocol.MetricsEvent, step=self.step, version=self.step, metrics=values)
        self.tell("running")

    def tell(self, phase: str) -> None:
        status = protocol.Status(run=self.name, attempt=self.attempt, beat=self.step, phase=phase, step=self.step,
                                 version=self.step, max_steps=self.max_steps, host="elsewhere", t=time.time())  # fmt: skip
        protocol.write_record(self.run.status, status)

    def __enter__(self) -> GrowingRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        exit_record = protocol.ExitRecord(
            run=self.name, attempt=self.attempt, reason="completed", code=0, step=self.step, t=time.time()
        )
        protocol.write_record(self.run.attempt(self.attempt) / "exit.json", exit_record)
        self.tell("completed")
