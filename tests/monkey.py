"""A long session of a careless user: random keys at random sizes on a real terminal, while runs start, train and end underneath.

`python -m tests.monkey [MINUTES] [SEED]` prints one JSON line and exits with 1 when the app ended, logged an exception or grew.
Memory is compared between the first tenth of the session, when every screen has been seen, and its end.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.growing_run import GrowingRun
from tests.ptydrive import PtyProgram

LETTERS = "abcdefghijklmnoprstuvwxyzGLNSTRX0123456789"
NAMED = [
    "\r", "\x1b", "\x1b", "\x1b",
    "\t", "\x1b[Z", "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F",
    " ", "/", "?", ":", "[", "]", ",", ".", "<", ">", "+", "-", "=", "\x7f", "\x04", "\x15", "\x13", "\x0c",
]  # fmt: skip
GROWTH = 1.10


class Monkey:
    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.dice, self.keys, self.count = home, random.Random(seed), 0, 0
        self.runs: list[GrowingRun] = []
        self.memory: list[tuple[float, float]] = []
        self.last = ""

    def change_runs(self) -> None:
        """Start a run, or end one; at most six live."""
        if self.runs and (len(self.runs) > 5 or self.dice.random() < 0.4):
            self.runs.pop(self.dice.randrange(len(self.runs))).__exit__()
            return
        self.count += 1
        started = GrowingRun(self.home / "runs", f"run-{self.count}", pace_s=self.dice.choice([0.2, 1.0, 5.0]))
        self.runs.append(started.__enter__())

    def play(self, program: PtyProgram, seconds: float) -> None:
        begin = time.monotonic()
        next_change = 0.0
        while (now := time.monotonic() - begin) < seconds:
            if now >= next_change:
                self.change_runs()
                self.memory.append((now / seconds, program.memory_mb()))
                next_change = now + 5.0
            if self.dice.random() < 0.02:
                program.resize((self.dice.randint(60, 220), self.dice.randint(15, 70)))
            else:
                program.send(self.dice.choice(NAMED) if self.dice.random() < 0.5 else self.dice.choice(LETTERS))
                self.keys += 1
            program.pump(0.03)
            if program.process.poll() is not None:
                return

    def growth(self) -> float:
        early = [mb for share, mb in self.memory if 0.1 <= share < 0.2]
        late = [mb for share, mb in self.memory if share >= 0.9]
        return statistics.median(late) / statistics.median(early) if early and late else 1.0

    def timeline(self) -> list[int]:
        """Megabytes at most in each tenth of the session."""
        return [round(max((mb for share, mb in self.memory if int(10 * share) == tenth), default=0)) for tenth in range(10)]

    def session(self, seconds: float) -> int | None:
        """The app's exit code; None when it lives to the end. The palette has a Quit, which ends it with 0."""
        command = [sys.executable, "-m", "molt_tui", "--read-only"]
        self.memory = []
        with PtyProgram(command, {"MOLT_TUI_HOME": str(self.home)}, size=(100, 30)) as program:
            program.wait_for("molt-tui")
            self.play(program, seconds)
            self.last = program.plain()[-2000:]
            return program.process.poll()


def main(minutes: float = 20.0, seed: int = 1) -> int:
    end = time.monotonic() + 60 * minutes
    growth, memory, ended = 1.0, 0.0, None
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as runs:
        home = Path(folder, "home")
        monkey = Monkey(home, seed)
        runs.callback(lambda: [run.__exit__() for run in monkey.runs])
        while (left := end - time.monotonic()) > 0 and ended in (None, 0):
            ended = monkey.session(left)
            growth, memory = max(growth, monkey.growth()), max(memory, monkey.memory[-1][1])
        log = home / "logs" / "tui.log"
        logged = log.read_text() if log.exists() else ""
    ok = ended in (None, 0) and "Traceback" not in logged and growth <= GROWTH
    result = {"minutes": minutes, "keys": monkey.keys, "runs": monkey.count, "ended": ended, "growth": round(growth, 3),
              "memory_mb": round(memory, 1), "timeline_mb": monkey.timeline(),
              "exceptions": logged.count("Traceback"), "ok": ok}  # fmt: skip
    print(json.dumps(result))
    if not ok:
        print(logged[-4000:], monkey.last, sep="\n", file=sys.stderr)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(*(kind(text) for kind, text in zip((float, int), sys.argv[1:], strict=False))))
