"""The one module that starts processes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from molt_tui.errors import MoltError

PROBE_TIMEOUT_S = 60.0
OUTPUT_BYTES = 32 * 1024 * 1024  # of one program; the nodes of the largest cluster take a third of it
SUPERVISOR_LOG, PLAYER_LOG = "supervisor.log", "player.log"
_PROBE = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"

calls: Counter[str] = Counter()
"""How often this process ran each program; the app shows its own calls to the scheduler."""


def missing_modules(python: str, names: tuple[str, ...]) -> list[str]:
    """Which top-level modules another interpreter cannot find; they are looked up, not imported. Raises MoltError."""
    try:
        done = subprocess.run([python, "-c", _PROBE, *names], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S,
                              stdin=subprocess.DEVNULL, cwd="/", check=True)  # fmt: skip
    except FileNotFoundError as error:
        raise MoltError(f"{python} does not exist") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise MoltError(f"{python} cannot be run: {error}") from error
    return done.stdout.split()


def supervisor_command(python: str, run: Path) -> list[str]:
    return [python, "-m", "engine.supervisor", str(run)]


def start_supervisor(python: str, run: Path) -> subprocess.Popen[bytes]:
    """Start a run's supervisor; its output goes to supervisor.log in the run directory. Raises MoltError."""
    return _start_detached(supervisor_command(python, run), run, SUPERVISOR_LOG)


def start_player(run: Path, scenario: str, options: Mapping[str, float | None]) -> subprocess.Popen[bytes]:
    """Start playing a scenario into a run directory; options without a value are left out. Raises MoltError."""
    command = [sys.executable, "-m", "molt_tui.scenarios.player", scenario, str(run)]
    command += [f"--{name}={value}" for name, value in options.items() if value is not None]
    return _start_detached(command, run, PLAYER_LOG)


def _start_detached(command: list[str], run: Path, log_name: str) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it survives this program and its terminal. Raises MoltError."""
    try:
        log = os.open(run / log_name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise MoltError(f"cannot write {run / log_name}: {error.strerror}") from error
    environment = os.environ.copy()
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").exists():  # found through the working directory, which the supervisor leaves
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(checkout), environment.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=run, env=environment,
                                start_new_session=True, close_fds=True)  # fmt: skip
    except OSError as error:
        raise MoltError(f"cannot start {command[0]}: {error.strerror}") from error
    finally:
        os.close(log)


@dataclass(frozen=True)
class Output:
    """What a program printed. `code` is None when it did not end in time."""

    code: int | None
    stdout: str
    stderr: str


def run_program(argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None,
                cwd: Path | None = None) -> Output:  # fmt: skip
    """Run a program to its end, without input. It and what it started are killed after `timeout` seconds, or when it floods.

    Raises MoltError when it is missing.
    """
    calls[Path(argv[0]).name] += 1
    try:
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   bufsize=0, cwd=cwd, env=environment, start_new_session=True)  # fmt: skip
    except FileNotFoundError as error:
        raise MoltError(f"{argv[0]} is not installed here; run this on a login node of the cluster") from error
    except OSError as error:
        raise MoltError(f"{argv[0]} cannot be run: {error.strerror}") from error
    with process:
        try:
            stdout, stderr, killed = _collect(process, timeout)
        except BaseException:
            _kill_session(process)
            raise
        if killed:
            _kill_session(process)
    if killed:
        return Output(None, stdout, f"{stderr}{argv[0]}: {killed}")
    return Output(process.returncode, stdout, stderr)


def _collect(process: subprocess.Popen[bytes], timeout: float) -> tuple[str, str, str]:
    """(standard output, standard error, why it must be killed: empty when it has ended)."""
    deadline, found, why = time.monotonic() + timeout, {}, ""
    with selectors.DefaultSelector() as waiting:
        for pipe in filter(None, (process.stdout, process.stderr)):
            found[waiting.register(pipe, selectors.EVENT_READ).fd] = bytearray()
        while waiting.get_map() and not why:
            for key, _ in waiting.select(max(deadline - time.monotonic(), 0.0)):
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    waiting.unregister(key.fileobj)
            if sum(map(len, found.values())) > OUTPUT_BYTES:
                why = f"printed more than {OUTPUT_BYTES >> 20} MiB"
            elif time.monotonic() >= deadline:
                why = f"timed out after {timeout:.0f} s"
    try:
        process.wait(0 if why else max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        why = why or f"timed out after {timeout:.0f} s"
    stdout, stderr = (data.decode(errors="replace") for data in found.values())
    return stdout, stderr, why


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
