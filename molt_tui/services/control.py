"""Commands to a live run, and their answers; stopping a run whose supervisor does not obey."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.wire import Cursor, EventReader, RunDir, open_regular
from molt_tui.errors import MoltError, Refused
from molt_tui.services.runs import Run
from molt_tui.store.liveness import process_alive
from molt_tui.store.runs import supervisor_of

POLL_S = 0.1
STREAMS = ("events", "supervisor")


@dataclass(frozen=True)
class Answer:
    """What the run answered to one command."""

    ok: bool
    message: str


@dataclass
class Pending:
    """A command that was sent, and where its answer will appear. `poll` never blocks; `wait` does."""

    run: RunDir
    id: str
    readers: dict[tuple[int, str], EventReader]

    def poll(self) -> Answer | None:
        """The answer if it has been given."""
        for attempt in self.run.attempt_numbers()[-1:]:
            for stream in STREAMS:
                reader = self.readers.setdefault((attempt, stream), EventReader(self.run.attempt(attempt) / stream))
                for event in reader.poll():
                    if event["kind"] == "control" and event.get("id") == self.id:
                        return Answer(bool(event.get("ok")), str(event.get("message", "")))
        return None

    def wait(self, timeout_s: float, *, over: Callable[[], bool] = lambda: False) -> Answer | None:
        """The answer, or None when none came in time (it may still come) or when `over()` says that none can come."""
        deadline = time.monotonic() + timeout_s
        while True:
            ending = over()
            answer = self.poll()
            if answer is not None or ending or time.monotonic() > deadline:
                return answer
            time.sleep(POLL_S)


def send(run: Run, name: str, args: dict[str, Any] | None = None) -> Pending:
    """Put a command into the run's inbox. Raises Refused for a run that cannot answer, MoltError when the inbox cannot be
    written."""
    if run.final:
        goes_on = run.state != "completed" and run.last_checkpoint is not None
        more = f"; `molt-tui resume {run.id}` continues it" if goes_on else ""
        raise Refused(f"{name.replace('_', ' ')} needs a live run: {run.id} is {run.state}{more}")
    if run.state == "draft":
        raise Refused(f"{run.id} has not been started; `molt-tui resume {run.id}` starts it")
    from engine.protocol import send_command

    directory = run.directory
    readers = {}
    for attempt in directory.attempt_numbers()[-1:]:
        for stream in STREAMS:
            folder = directory.attempt(attempt) / stream
            readers[(attempt, stream)] = EventReader(folder, _end_of(folder))
    try:
        command = send_command(directory, name, args, who())
    except OSError as error:
        raise MoltError(f"cannot write to {directory.control}: {error.strerror}") from error
    return Pending(directory, command.id, readers)


def who() -> str:
    """user@host, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def ended(run: Run) -> bool:
    """Whether the newest attempt has an exit record, or its supervisor on this host is gone."""
    directory = run.directory
    numbers = directory.attempt_numbers()
    if not numbers or (directory.attempt(numbers[-1]) / "exit.json").exists():
        return True
    return process_alive(supervisor_of(directory)) is False


def stop(
    run: Run, *, command_s: float = 60.0, signal_s: float = 75.0, kill: bool = False, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Stop a run: by command, then by signal to its supervisor if that is on this host; returns whether it is over.

    The first SIGTERM lets the supervisor save a checkpoint within its own time limit; only `kill` goes further, and loses
    the work since the last checkpoint. A run that is still starting cannot read commands and gets the signal at once.
    `say` gets one line per stage.
    """
    if run.cluster != "local":
        raise Refused(f"{run.id} runs on {run.cluster}; its job is stopped through Slurm there")
    pending = None
    try:
        pending = send(run, "stop")
    except Refused:
        raise
    except MoltError as error:  # a full disk takes no command; a signal needs none
        say(str(error))
    if pending is not None and run.state not in ("queued", "starting") and not kill:
        say(f"asked {run.id} to stop; it saves a checkpoint first")
        answer = pending.wait(command_s, over=lambda: ended(run))
        if answer is not None:
            say(answer.message)
        if _wait(lambda: _gone(run), command_s):
            return True
    stages = [(signal.SIGTERM, 3.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)] if kill else [(signal.SIGTERM, signal_s)]
    for number, patience in stages:
        owner = supervisor_of(run.directory)
        if process_alive(owner) is not True:
            break
        say(f"sending {signal.Signals(number).name} to the supervisor (process {owner['pid']})")
        _signal(owner["pid"], number)
        if _wait(lambda: _gone(run), patience):
            return True
    return _gone(run)


def _gone(run: Run) -> bool:
    return ended(run) and process_alive(supervisor_of(run.directory)) is not True


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise MoltError(f"process {pid} belongs to another user; ask them to stop the run") from error


def _end_of(folder: Path) -> Cursor:
    """A cursor at the last complete line of a stream, so that only later events are read."""
    names = sorted(p.name for p in folder.glob("[0-9]*.jsonl"))
    if not names:
        return Cursor()
    with open_regular(folder / names[-1]) as file:
        start = max(os.fstat(file.fileno()).st_size - 1_000_000, 0)
        file.seek(start)
        return Cursor(int(names[-1].split(".")[0]), start + file.read().rfind(b"\n") + 1)
