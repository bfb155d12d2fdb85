"""Real runs: the whole engine as a user starts it, and what it left in the run directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import send_command
from engine.wire import EventReader, RunDir
from tests.records import read_exit, read_status

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 240


@dataclass
class LiveRun:
    """A run that was started as its own process, and its directory."""

    run: RunDir
    process: subprocess.Popen

    @property
    def events(self) -> list[dict[str, Any]]:
        found = []
        for number in self.run.attempt_numbers():
            found += EventReader(self.run.attempt(number) / "events").poll()
        return found

    def steps(self) -> dict[int, dict[str, Any]]:
        """Training metrics by step; a later attempt supersedes what it repeats."""
        return {e["step"]: e for e in self.events if e["kind"] == "metrics" and "time/step" in e["metrics"]}

    def evals(self) -> list[dict[str, Any]]:
        return [e for e in self.events if e["kind"] == "metrics" and any(k.startswith("eval/") for k in e["metrics"])]

    def wait_for(self, what: str, condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """The first true value of `condition`; fails when the run ends or the time is up before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            assert self.process.poll() is None, f"the run ended before {what}: {self.log()}"
            time.sleep(0.2)
        raise AssertionError(f"no {what} within {seconds} s: {self.log()}")

    def command(self, name: str, **args: Any) -> dict[str, Any]:
        """Send a command and return the event that answers it."""
        sent = send_command(self.run, name, args, who="test")
        return self.wait_for(f"answer to {name}", lambda: self.answers(sent.id), 60)[0]

    def answers(self, command_id: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["kind"] == "control" and e["id"] == command_id]

    def end(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)

    def exit(self, attempt: int):
        return read_exit(self.run, attempt)

    def status(self):
        return read_status(self.run)

    def log(self) -> str:
        number = (self.run.attempt_numbers() or [0])[-1]
        log = self.run.attempt(number) / "logs" / "engine.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "no log"

    def processes(self) -> list[int]:
        """Live processes that belong to this run: they name its directory or carry it in their environment."""
        mark, found = str(self.run.path).encode(), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if mark in text and (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """kill -9 of every process of the run, those that were being born included."""
        deadline = time.monotonic() + 20
        while (alive := self.processes()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        self.process.wait(30)

    def supervise(self) -> None:
        """Start the next attempt."""
        command = [sys.executable, "-m", "engine.supervisor", str(self.run.path)]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, start_new_session=True)


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., LiveRun]]:
    """Starts `python -m engine run RECIPE flags...` and ends whatever is left of it."""
    started: list[LiveRun] = []

    def start(recipe: str, *flags: str) -> LiveRun:
        root = tmp_path / f"runs{len(started)}"
        command = [sys.executable, "-m", "engine", "run", recipe, "--runs-root", str(root), *flags]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 30
        while not (made := list(root.glob("[!.]*"))):
            assert process.poll() is None and time.monotonic() < deadline, "no run directory was made"
            time.sleep(0.1)
        started.append(LiveRun(RunDir(made[0]), process))
        return started[-1]

    yield start
    for live in started:
        if live.process.poll() is None:
            live.kill()
