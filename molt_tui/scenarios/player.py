"""Plays a scenario into a fresh run directory as if the run were alive: python -m molt_tui.scenarios.player NAME RUNDIR

It takes the place of a run's supervisor and engine: it writes events at their (scaled) times, keeps the beat moving and
answers control commands. Nothing of the engine's packages is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import processes
from engine.protocol import take_commands
from engine.wire import PROTOCOL, LogWriter, RunDir, encode_line, write_atomic
from molt_tui.errors import MoltError
from molt_tui.scenarios.archive import Item, Scenario, load

BEAT_S, TICK_S, HOLD_S = 1.0, 0.1, 600.0
TARGET_S = 60.0
HEAD = {"protocol", "run", "attempt", "seq", "t", "kind", "step", "version"}
ANSWERS = {"pause": "paused", "resume": "resumed", "checkpoint": "recorded run: nothing to save", "set": "recorded run: noted",
           "stop": "stopping", "stop_after_step": "stopping"}  # fmt: skip


def default_speed(scenario: Scenario) -> float:
    """The speed at which the whole recording lasts about a minute; never slower than life."""
    return max(1.0, scenario.duration_s / TARGET_S)


def prepare(scenario: Scenario, runs_root: Path, run_id: str, *, now: float, command: list[str]) -> RunDir:
    """A run directory that says `queued`, complete or not at all. Raises MoltError."""
    hidden = RunDir(runs_root / f".{run_id}")
    meta = scenario.meta | {"run": run_id, "name": f"demo-{scenario.name}", "created": now, "command": command,
                            "host": socket.gethostname(), "group": None, "tags": ["demo", "recorded"]}  # fmt: skip
    try:
        runs_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        hidden.create()
        for name, data in scenario.files.items():
            (hidden.path / name).write_bytes(data)
        write_atomic(hidden.meta, encode_line(meta))
        write_atomic(hidden.status, encode_line({"protocol": PROTOCOL, "run": run_id, "attempt": 0, "beat": 0,
                                                 "phase": "queued", "t": now}))  # fmt: skip
        return RunDir(hidden.path.rename(runs_root / run_id))
    except OSError as error:
        shutil.rmtree(hidden.path, ignore_errors=True)
        raise MoltError(f"cannot make a run directory in {runs_root}: {error.strerror or error}") from error


class Player:
    """One playing. `speed` is recorded seconds per real second."""

    def __init__(self, scenario: Scenario, run: RunDir, speed: float, clock: Callable[[], float] = time.time) -> None:
        self.scenario, self.run, self.speed, self.clock = scenario, run, speed, clock
        self.run_id = run.path.name
        self.writers: dict[str, LogWriter] = {}
        self.attempts: dict[int, int] = {}
        self.attempt = 0
        self.status: dict[str, Any] = {"phase": "starting"}
        self.beat = 0
        self.beat_at = float("-inf")
        self.played_s = 0.0
        self.paused = False
        self.stop: str | None = None

    def play(self, hold_s: float = HOLD_S) -> int:
        """Play to the end or until a stop; returns the exit code of the process.

        A recording that does not end with an exit goes on as it was at its end, for at most `hold_s` seconds.
        """
        waiting = list(reversed(self.scenario.items))
        before = time.monotonic()
        while waiting and self.stop is None:
            now = time.monotonic()
            self.played_s += 0.0 if self.paused else (now - before) * self.speed
            before = now
            while waiting and waiting[-1].t <= self.played_s:
                self.apply(waiting.pop())
            self.obey()
            self.write_status()
            if waiting:
                time.sleep(TICK_S)
        if self.scenario.ending != "exit" and self.stop is None:
            self.hold(hold_s)
        if self.scenario.ending == "lost" and self.stop is None:
            return 1
        if self.stop is not None:
            self.finish(self.stop)
        if self.status["phase"] != "completed":
            self.status.pop("last_checkpoint", None)  # it was saved elsewhere: there is nothing to go on from
        self.write_status(force=True)
        return 0

    def hold(self, seconds: float) -> None:
        """What a run does after its recording: beat on, or hang in silence; a stop ends it, as does the end of the time."""
        until = time.monotonic() + (0.0 if self.scenario.ending == "lost" else seconds)
        if self.scenario.verdict != "stuck":  # by a clock that went on, every recording would end as a run without steps
            end = self.clock()
            self.clock = lambda: end
        while time.monotonic() < until and self.stop is None:
            if self.scenario.ending == "live":
                self.obey()
                self.write_status()
            time.sleep(TICK_S)
        if self.stop is None and self.scenario.ending != "lost":
            self.stop = "the recording is over"

    def apply(self, item: Item) -> None:
        """One thing happens."""
        if item.attempt not in self.attempts:
            self.begin(item.attempt)
        folder = self.run.attempt(self.attempt)
        if item.action in ("events", "supervisor"):
            self.emit(item.action, item.payload)
        elif item.action == "log":
            with (folder / "logs" / item.name).open("ab") as file:
                file.write(item.payload)
        elif item.action == "rollouts":
            name = f"{self.attempt}-{item.name.split('-', 1)[1]}"
            write_atomic(self.run.rollouts / name, self.renamed(item.payload))
        else:
            record = item.payload | {"run": self.run_id, "attempt": self.attempt, "resumable": False, "t": time.time()}
            write_atomic(folder / "exit.json", encode_line(record))

    def renamed(self, packed: bytes) -> bytes:
        """A rollout file with this run and attempt in its records."""
        records = map(json.loads, gzip.decompress(packed).splitlines())
        mine = {"run": self.run_id, "attempt": self.attempt}
        return gzip.compress(b"".join(encode_line(record | mine) for record in records), mtime=0)

    def begin(self, recorded: int) -> None:
        """The next attempt, with its own number here."""
        self.attempt = self.attempts[recorded] = self.run.claim_attempt(processes.identity())
        self.writers = {s: LogWriter(self.run, self.run_id, self.attempt, s) for s in ("events", "supervisor")}
        self.status = {"phase": "starting"}

    def emit(self, stream: str, record: dict[str, Any]) -> None:
        fields = {key: value for key, value in record.items() if key not in HEAD}
        self.writers[stream].write(record["kind"], record.get("step"), record.get("version"), **fields)
        if record["kind"] == "phase":
            self.status |= {"phase": record.get("phase"), "detail": record.get("detail", "")}
        if record["kind"] in ("metrics", "sync"):
            self.status |= {key: record[key] for key in ("step", "version") if record.get(key) is not None}
        if record["kind"] == "fault" and record.get("fatal"):
            self.status["last_error"] = record.get("detail")
        if record["kind"] == "checkpoint":
            self.status["last_checkpoint"] = record.get("step")

    def obey(self) -> None:
        """Answer what people ask of the run; pausing and stopping are real."""
        for command in take_commands(self.run):
            if not self.writers:
                self.begin(-1)
            ok = command.name in ANSWERS
            message = ANSWERS.get(command.name, "a recorded run cannot do this")
            answer = {"id": command.id, "name": command.name, "ok": ok, "message": message, "who": command.who,
                      "args": command.args}  # fmt: skip
            self.writers["events"].write("control", self.status.get("step"), self.status.get("version"), **answer)
            if command.name in ("pause", "resume"):
                self.paused = command.name == "pause"
                self.change_phase("paused" if self.paused else "running")
            if command.name in ("stop", "stop_after_step"):
                self.stop = "stopped by request"

    def change_phase(self, phase: str, detail: str = "") -> None:
        self.emit("supervisor", {"kind": "phase", "phase": phase, "detail": detail})
        self.write_status(force=True)

    def finish(self, why: str) -> None:
        """End early, as a cancelled run does."""
        if not self.writers:
            self.begin(-1)
        self.change_phase("cancelled", why)
        record = {"protocol": PROTOCOL, "run": self.run_id, "attempt": self.attempt, "reason": "cancelled", "detail": why,
                  "code": 130, "step": self.status.get("step"), "resumable": False, "t": time.time()}  # fmt: skip
        write_atomic(self.run.attempt(self.attempt) / "exit.json", encode_line(record))

    def write_status(self, *, force: bool = False) -> None:
        """status.json, once a second."""
        now = time.monotonic()
        if not force and now - self.beat_at < BEAT_S:
            return
        self.beat_at = now
        self.beat += 1
        left = self.scenario.time_left_s
        played_s = min(self.played_s, self.scenario.duration_s)
        limit = {} if left is None else {"time_left_s": max(0.0, left - played_s)}
        record = {"protocol": PROTOCOL, "run": self.run_id, "attempt": self.attempt, "beat": self.beat, "detail": "", **limit,
                  "max_steps": self.scenario.max_steps, "host": socket.gethostname(), "pid": os.getpid(), "t": self.clock(),
                  **self.status}  # fmt: skip
        write_atomic(self.run.status, encode_line(record))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m molt_tui.scenarios.player")
    parser.add_argument("scenario")
    parser.add_argument("rundir", type=Path)
    parser.add_argument("--speed", type=float, help="recorded seconds per second; default: it lasts a minute")
    parser.add_argument("--hold", type=float, default=HOLD_S, help="seconds that a live recording goes on after its end")
    options = parser.parse_args(arguments)
    scenario = load(options.scenario)
    player = Player(scenario, RunDir(options.rundir), options.speed or default_speed(scenario))

    def asked(number: int, _frame: Any) -> None:
        player.stop = signal.Signals(number).name

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return player.play(options.hold)


if __name__ == "__main__":
    raise SystemExit(main())
