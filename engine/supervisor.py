"""Runs one attempt of a run and outlives it: `python -m engine.supervisor RUNDIR`. Standard library only.

It claims the next attempt number, starts the controller in its own session, keeps status.json alive, turns signals into
a stop with a checkpoint, and at the end removes every process of the attempt and writes exit.json. It holds the write
end of a pipe whose closing tells the controller that the supervisor is gone (lifeline.py).
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine import processes, wire
from engine.lifeline import PIPE_VARIABLE, SCRATCH_VARIABLE
from engine.wire import LogWriter, RunDir, encode_line, write_atomic

BEAT_SECONDS, POLL_SECONDS = 1.0, 0.25
GRACE_SECONDS = 60.0
# A signal that comes this soon after the first is the same wish, sent twice.
REPEAT_SECONDS = 2.0
RESERVE_BYTES = 64 * 1024
TERM_SECONDS, CLEANUP_SECONDS = 2.0, 9.0
STOP_SIGNALS = {signal.SIGINT: "cancelled", signal.SIGTERM: "cancelled", signal.SIGUSR1: "preempted"}
EXIT_CODES = {"completed": 0, "failed": 1, "crashed": 1, "cancelled": 130, "preempted": 143, "timeout": 143}
PROGRESS_FIELDS = ("step", "version", "last_checkpoint", "max_steps")


class Refused(Exception):
    """The run cannot be started; the message says why."""


def check_idle(run: RunDir) -> None:
    """Raise Refused when a supervisor of this run is alive, here or (its beat moves) on another host."""
    for number in reversed(run.attempt_numbers()):
        owner = _read(run.attempt(number) / wire.OWNER_FILE)
        if (run.attempt(number) / "exit.json").exists() or not owner:
            continue
        if processes.is_alive(owner) or (processes.is_alive(owner) is None and _beat_moves(run)):
            raise Refused(f"{run.path.name} is already running: attempt {number}, supervisor pid {owner.get('pid')} on "
                          f"{owner.get('host')}; stop it first")  # fmt: skip


def _beat_moves(run: RunDir) -> bool:
    before = _read(run.status).get("beat")
    deadline = time.monotonic() + 4 * BEAT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        if _read(run.status).get("beat") != before:
            return True
    return False


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty when it is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


class Supervisor:
    """One attempt. `command` is the controller; the run directory and `--attempt N` are appended to it.

    A subclass may override `watch`, `signalled`, `explain` and `outlook`, which do nothing here.
    """

    def __init__(self, run: RunDir, command: Sequence[str], grace: float = GRACE_SECONDS) -> None:
        self.run, self.command, self.grace = run, list(command), grace
        self.run_id = str(_read(run.meta).get("run") or run.path.name)
        self.beat = int(_read(run.status).get("beat") or 0)
        self.progress: dict[str, Any] = {}
        # Where the attempt goes on from, until its controller says how far it is.
        self.saved = {"step": saved, "last_checkpoint": saved} if (saved := self._saved_step()) is not None else {}
        self.signals: list[int] = []
        self.stop_reason: str | None = None
        self.stop_began = 0.0
        self.killed = ""  # why, once the controller was
        self.error: str | None = None
        self.write_error = ""
        self.controller: subprocess.Popen[bytes] | None = None
        self.ended: int | None = None
        self._written: dict[str, Any] = {}
        self._beat_at = 0.0

    def execute(self) -> int:
        """Claim, run, clean up, record; returns the exit code. Raises Refused when the run is alive elsewhere."""
        check_idle(self.run)
        self.number = self.run.claim_attempt(processes.identity())
        try:
            self._check_lower_claims()
        except Refused:
            shutil.rmtree(self.run.attempt(self.number))
            raise
        self.log = LogWriter(self.run, self.run_id, self.number, "supervisor")
        self.marker = f"{self.run.path}:{self.number}"
        self._reserve_space()
        self.scratch = _short_scratch()
        processes.become_subreaper()
        try:
            self._install_signals()
            self._settle_older_attempts()
            self._phase("starting", f"attempt {self.number}")
            self._start()
            while self.ended is None:
                self._tick(POLL_SECONDS)
                self.watch()
        except Exception as error:
            self.error = f"supervisor: {error}"
            self._keep_traceback()
        return self._finish()

    def watch(self) -> None:
        """Called at least every second while the controller lives."""

    def signalled(self, number: int) -> None:
        """Called with every signal to stop, after it was passed on; the controller may have ended just before."""

    def explain(self, reason: str, detail: str) -> tuple[str, str]:
        """Reason and detail of the exit record, which can be made more exact here."""
        return reason, detail

    def outlook(self, phase: str, detail: str) -> tuple[str, str]:
        """Phase and detail of status.json once the exit record is written: what the run does next, where it goes on."""
        return phase, detail

    def _reserve_space(self) -> None:
        """Hold a little space for the exit record: a run that ends because the disk is full can then say so."""
        self._reserve = self.run.attempt(self.number) / ".reserve"
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(os.urandom(RESERVE_BYTES))

    def _check_lower_claims(self) -> None:
        """Of two supervisors that claimed at the same moment the lower number goes on."""
        for number in self.run.attempt_numbers():
            owner = _read(self.run.attempt(number) / wire.OWNER_FILE)
            if number < self.number and not (self.run.attempt(number) / "exit.json").exists() and processes.is_alive(owner):
                raise Refused(f"{self.run.path.name} was started by someone else at the same moment (attempt {number})")

    def _settle_older_attempts(self) -> None:
        """Kill what a killed supervisor left behind and write the exit record that it could not."""
        older = f"{self.run.path}:"
        processes.kill_until_gone(lambda: processes.family(lambda value: value.startswith(older)), CLEANUP_SECONDS)
        for number in self.run.attempt_numbers():
            folder = self.run.attempt(number)
            if number < self.number and not (folder / "exit.json").exists():
                step = _read(folder / "progress.json").get("step")
                self._write_exit(folder, number, "crashed", "its supervisor was killed", None, step)

    def _install_signals(self) -> None:
        self._wake, wake_end = os.pipe()
        for descriptor in (self._wake, wake_end):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda received, _frame: self.signals.append(received))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _start(self) -> None:
        package_root = str(Path(__file__).resolve().parent.parent)
        lifeline, self._lifeline_end = os.pipe()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
            SCRATCH_VARIABLE: self.scratch,
            PIPE_VARIABLE: str(lifeline),
            processes.MARKER: self.marker,
        }
        command = [*self.command, str(self.run.path), "--attempt", str(self.number)]
        log = os.open(self._engine_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, wire.FILE_MODE)
        try:
            self.controller = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                               cwd=self.run.path, start_new_session=True, pass_fds=[lifeline])  # fmt: skip
        finally:
            os.close(log)
            os.close(lifeline)

    def _engine_log(self) -> Path:
        return self.run.attempt(self.number) / "logs" / "engine.log"

    def _tick(self, seconds: float) -> None:
        """Wait a moment (signals and ended children cut it short), then look after everything once."""
        if select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)
        self._reap()
        while self.signals:
            self._on_signal(self.signals.pop(0))
        late = time.monotonic() - self.stop_began > self.grace
        if self.stop_reason and late and not self.killed and self.ended is None:
            self._kill_controller(f"did not stop within {self.grace:g} s", "it did not stop in time")
        self._update_status()

    def _reap(self) -> None:
        """Collect every ended child: the controller, and orphans that came here when their parents ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.controller is not None and pid == self.controller.pid:
                self.ended = self.controller.returncode = os.waitstatus_to_exitcode(status)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.ended is None and self.stop_reason is None:
            self.stop_reason, self.stop_began = STOP_SIGNALS[number], time.monotonic()
            self._phase("stopping", f"{name}: checkpoint, then stop")
            self._signal_controller(signal.SIGTERM)
        elif self.ended is None and time.monotonic() - self.stop_began > REPEAT_SECONDS and not self.killed:
            self._kill_controller(f"second {name}", f"a second {name} asked for that")
        self.signalled(number)

    def _kill_controller(self, detail: str, why: str) -> None:
        self.killed = why
        self._write("fault", what="controller_killed", detail=detail, fatal=True)
        self._signal_controller(signal.SIGKILL)

    def _signal_controller(self, number: int) -> None:
        if self.controller is not None and self.ended is None:
            processes.send({self.controller.pid}, number)

    def _members(self) -> set[int]:
        """Every living process of this attempt but the supervisor."""
        return processes.descendants(os.getpid()) | processes.family(lambda value: value == self.marker)

    def _remove_processes(self) -> set[int]:
        """End what the controller left: TERM, a moment, KILL. Returns what could not be removed."""
        began = time.monotonic()
        processes.send(self._members(), signal.SIGTERM)
        while self._members() and time.monotonic() - began < TERM_SECONDS:
            self._tick(0.05)
        left = processes.kill_until_gone(self._members, CLEANUP_SECONDS - TERM_SECONDS)
        self._reap()
        return left

    def _finish(self) -> int:
        """Remove the processes, then say how the attempt ended."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        left = self._remove_processes()
        if left:
            self._write("fault", what="processes_left", detail=f"could not kill {sorted(left)}", fatal=False)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        self.progress = _read(self.run.attempt(self.number) / "progress.json")
        reason, detail = self.explain(*self._verdict())
        folder = self.run.attempt(self.number)
        self._write_exit(folder, self.number, reason, detail, self.ended, self.progress.get("step"))
        phase = "failed" if reason == "crashed" else reason
        self._phase(phase, detail)
        self._update_status(*self.outlook(phase, detail))
        self.log.close()
        return EXIT_CODES[reason]

    def _verdict(self) -> tuple[str, str]:
        """(reason, detail) of the exit record."""
        code = self.ended
        if self.error is not None or code is None:
            return "failed", self.error or "the controller was never started"
        if code == wire.EXIT_COMPLETED:
            return "completed", ""
        if code == wire.EXIT_STOPPED or self.stop_reason:
            how = f"killed: {self.killed}" if self.killed else str(self.progress.get("detail") or "")
            return self.stop_reason or "cancelled", one_line(how)
        if code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return "crashed", f"killed by {signal.Signals(-code).name}{hint}"
        # Where the disk refused writes, the controller's last words could not be written either.
        refused = self.write_error and f"the run directory could not be written: {self.write_error}"
        said = one_line(str(self.progress.get("error") or "")) or refused or self._last_log_line()
        return "failed", said or f"exit code {code}"

    def _last_log_line(self) -> str:
        """The last line that the controller printed, which for an exception names it."""
        try:
            with self._engine_log().open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((text for line in reversed(lines) if (text := one_line(line))), "")

    def _write_exit(self, folder: Path, number: int, reason: str, detail: str, code: int | None, step: Any) -> None:
        record = {"protocol": wire.PROTOCOL, "run": self.run_id, "attempt": number, "reason": reason, "detail": detail,
                  "code": code if code is not None and code >= 0 else None, "signal": -code if code and code < 0 else None,
                  "step": step, "resumable": self._resumable(), "t": time.time()}  # fmt: skip
        with contextlib.suppress(OSError):
            write_atomic(folder / "exit.json", encode_line({k: v for k, v in record.items() if v is not None}))

    def _resumable(self) -> bool:
        return self._saved_step() is not None

    def _saved_step(self) -> int | None:
        """The step of the newest checkpoint that was written to its end."""
        folder = self.run.checkpoints
        with contextlib.suppress(OSError, ValueError):
            path = tomllib.loads(self.run.run_toml.read_text()).get("ckpt", {}).get("path")
            folder = Path(path) / self.run.path.name if path else folder
        marks = folder.glob(f"step-*/{wire.CHECKPOINT_MARK}")
        return max((int(n) for mark in marks if (n := mark.parent.name.removeprefix("step-")).isdecimal()), default=None)

    def _update_status(self, phase: str | None = None, detail: str | None = None) -> None:
        """Merge the controller's progress into status.json, when it changed or a beat is due."""
        progress = self.progress = _read(self.run.attempt(self.number) / "progress.json") or self.progress
        failed = detail if phase == "failed" else None
        merged = {"phase": phase or self._live_phase(), "detail": progress.get("detail", "") if detail is None else detail,
                  "last_error": failed or progress.get("error")}  # fmt: skip
        merged |= self.saved | {key: progress[key] for key in PROGRESS_FIELDS if progress.get(key) is not None}
        if merged == self._written and time.monotonic() - self._beat_at < BEAT_SECONDS:
            return
        self.beat += 1
        status = {"protocol": wire.PROTOCOL, "run": self.run_id, "attempt": self.number, "beat": self.beat, **merged,
                  "job_id": os.environ.get("SLURM_JOB_ID"), "host": os.uname().nodename, "pid": os.getpid(),
                  "time_left_s": _time_left(), "t": time.time()}  # fmt: skip
        with self._surviving_a_full_disk():
            write_atomic(self.run.status, encode_line({k: v for k, v in status.items() if v is not None}))
        self._written, self._beat_at = merged, time.monotonic()

    def _live_phase(self) -> str:
        phase = self.progress.get("phase")
        return "stopping" if self.stop_reason else phase if phase in ("running", "paused", "stopping") else "starting"

    def _phase(self, phase: str, detail: str) -> None:
        self._write("phase", phase=phase, detail=detail)

    def _write(self, kind: str, **fields: Any) -> None:
        with self._surviving_a_full_disk():
            self.log.write(kind, self.progress.get("step"), self.progress.get("version"), **fields)

    @contextlib.contextmanager
    def _surviving_a_full_disk(self) -> Iterator[None]:
        """A refused write must not end the supervision; it is remembered for the exit record."""
        try:
            yield
            self.write_error = ""
        except OSError as error:
            self.write_error = error.strerror or str(error)

    def _keep_traceback(self) -> None:
        with contextlib.suppress(OSError):
            (self.run.attempt(self.number) / "logs" / "supervisor.log").write_text(traceback.format_exc())


def _time_left() -> float | None:
    """Seconds until the job's time limit, as Slurm told the job; None outside of one."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) - time.time() if end.isdigit() else None


def _short_scratch() -> str:
    """A temporary directory for Ray; its socket paths may have 107 bytes in all, so that a long TMPDIR is left out."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="molt-", dir=base if len(base) <= 32 else "/tmp")


def one_line(text: str, limit: int = 300) -> str:
    """Printable characters only, one line, bounded."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.supervisor", description="Supervise the next attempt of a run.")
    parser.add_argument("rundir", type=Path)
    run = RunDir(parser.parse_args(argv).rundir.resolve())
    if not run.run_toml.is_file():
        print(f"refused: {run.path} is not a run directory (it has no run.toml)", file=sys.stderr)
        return 2
    os.umask(0o077)
    # Leave the terminal's session, unless the launcher already did that.
    with contextlib.suppress(PermissionError):
        os.setsid()
    try:
        return Supervisor(run, [sys.executable, "-m", "engine", "attempt"]).execute()
    except (Refused, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
