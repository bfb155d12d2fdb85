"""Supervises a run inside its allocation: attempt after attempt, until it is done. `python -m slurm.job RUNDIR`.

Slurm's signals arrive here: USR1 before the time limit or a preemption (save, stop, requeue), TERM at a cancellation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import processes
from engine.supervisor import Refused, Supervisor
from engine.wire import RunDir, encode_line, write_atomic
from slurm.allocation import Job, call, folder, kill_wait, lost_nodes, outside, read_settings, show_job
from slurm.decide import REQUEUED, WAIT_SECONDS, Action, next_action, reason_of_signal

FENCE_SECONDS = 3.0
WHY_SECONDS = 3.0
OLDER_START_SECONDS = 120.0
REQUEUED_SECONDS = 300.0
REQUEUE_SECONDS = 180.0
PROBE_SECONDS = 90.0
# What scontrol says when someone else has requeued the job already, and when the controller does not answer.
ALREADY = "pending execution"
NO_ANSWER = ("Unable to contact", "timed out", "Connection refused", "communication", "connect failure")


class JobSupervisor(Supervisor):
    """A supervisor that asks Slurm why it is signalled, and ends at once when another job start has taken the run.

    `decide` says what the job does after the newest exit record.
    """

    def __init__(self, run: RunDir, job: Job, term_grace: float, grace: float, decide: Callable[[], Action]) -> None:
        python = os.environ.get("MOLT_JOB_PYTHON") or sys.executable
        super().__init__(run, [python, "-m", "slurm.attempt"], grace)
        self.job, self.term_grace, self.decide = job, term_grace, decide
        self.why: tuple[str, str] | None = None
        self.by_warning = False
        self._fence_at = 0.0

    def watch(self) -> None:
        if time.monotonic() - self._fence_at < FENCE_SECONDS:
            return
        self._fence_at = time.monotonic()
        if not self.job.owns(self.run):
            processes.kill_until_gone(self._members, 5)
            print("another job start has taken this run: ended", file=sys.stderr, flush=True)
            os._exit(9)

    def signalled(self, number: int) -> None:
        """Slurm has settled why before it signals, so it is asked now, while the controller saves."""
        if self.why is not None:
            return
        if number == signal.SIGTERM:
            self.grace = self.term_grace
        self.by_warning = number == signal.SIGUSR1
        record = show_job(self.job.id, WHY_SECONDS)
        self.why = reason_of_signal(signal.Signals(number).name, record, self.job.restart)
        if self.why[1] == REQUEUED and (lost := lost_nodes(self.job.node_list, WHY_SECONDS)):
            self.why = self.why[0], f"the job lost {lost}"

    def explain(self, reason: str, detail: str) -> tuple[str, str]:
        """Slurm's reason for an attempt that it ended; what the controller saved after a warning stays in the words."""
        if self.why is None or reason == "completed":
            return reason, detail
        saved = detail if self.by_warning and reason == "preempted" else ""
        return self.why[0], f"{self.why[1]}; {saved}" if saved else self.why[1]

    def outlook(self, phase: str, detail: str) -> tuple[str, str]:
        """A run that goes on is not shown as ended in between."""
        action = self.decide()
        if action.kind == "restart":
            return "starting", f"crashed ({action.words}); starts again in {action.wait:.0f} s"
        return ("queued", f"requeued: {action.words}") if action.kind == "requeue" else (phase, detail)


class RunningJob:
    """One start of a job: restarts attempts within the allocation and hands over to the next start."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.job, self.settings = run, Job.here(), read_settings(run)
        self.received: list[int] = []
        self.first_wait = float(os.environ.get("MOLT_RESTART_SECONDS") or WAIT_SECONDS)

    def execute(self) -> int:
        """Returns the exit code of the batch script: 0 unless the run failed."""
        self.job.take(self.run, started=time.time(), host=os.uname().nodename)
        # Slurm kills the job KillWait seconds after its TERM; the exit record must be there before.
        term_grace = max(2.0, kill_wait() - 12.0)
        grace = float(os.environ.get("MOLT_SAVE_SECONDS") or 240)
        self._listen()
        while True:
            supervisor = JobSupervisor(self.run, self.job, term_grace, grace, self._decide)
            self._attempt(supervisor)
            self._listen()
            action = self._decide()
            print(f"attempt {supervisor.number}: {action.kind}: {action.words}", flush=True)
            if action.kind == "restart":
                action = self._before_restart(action)
            if action.kind == "end":
                return action.code
            if action.kind == "requeue":
                return self._requeue(action.words)

    def _decide(self) -> Action:
        return next_action(self._exits(), requeue=self.settings.requeue, max_restarts=self.settings.max_restarts,
                           first_wait=self.first_wait)  # fmt: skip

    def _attempt(self, supervisor: JobSupervisor) -> None:
        """Run one attempt. An older start on a node that Slurm lost may still be alive: it ends when it sees its successor."""
        deadline = time.monotonic() + OLDER_START_SECONDS
        while True:
            try:
                supervisor.execute()
                return
            except Refused as refused:
                if time.monotonic() > deadline or self.received:
                    raise SystemExit(f"refused: {refused}") from refused
                time.sleep(FENCE_SECONDS)

    def _listen(self) -> None:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: self.received.append(received))

    def _exits(self) -> list[dict[str, Any]]:
        records = []
        for number in self.run.attempt_numbers():
            with contextlib.suppress(OSError, ValueError):
                records.append(json.loads((self.run.attempt(number) / "exit.json").read_bytes()))
        return records

    def _before_restart(self, action: Action) -> Action:
        """Wait before a restart; the allocation may end or have lost a node meanwhile."""
        deadline = time.monotonic() + action.wait
        while time.monotonic() < deadline and not self.received:
            time.sleep(0.2)
        if signal.SIGUSR1 in self.received:
            return Action("requeue" if self.settings.requeue else "end", "the time limit came near during a restart")
        if self.received:
            return Action("end", "stopped by a signal during a restart")
        code, text = call(["srun", "--overlap", f"--ntasks={self.job.nodes}", "--ntasks-per-node=1", "--cpu-bind=none", "--mem=0",
                           "true"], PROBE_SECONDS)  # fmt: skip
        if code != 0 and self.settings.requeue:
            return Action("requeue", f"a node of the allocation does not answer: {text.strip()[:200]}")
        return action

    def _requeue(self, words: str) -> int:
        """Hand over to the next job start. Returns the exit code when this start may end by itself."""
        self._status(phase="queued", detail=f"requeued: {words}")
        deadline = time.monotonic() + REQUEUE_SECONDS
        while True:
            code, text = call(["scontrol", "requeue", self.job.id])
            if code == 0 or ALREADY in text:
                return self._wait_to_be_ended(code == 0)
            if not any(said in text for said in NO_ANSWER) and code is not None:
                print(f"scontrol requeue: {text.strip()}", file=sys.stderr, flush=True)
                return self._successor(words)
            if time.monotonic() > deadline or signal.SIGTERM in self.received:
                self._status(phase="preempted", detail=f"{words}; Slurm did not answer: `molt-tui requeue` goes on")
                return 1
            time.sleep(FENCE_SECONDS)

    def _wait_to_be_ended(self, wait: bool) -> int:
        """After a requeue Slurm ends this start; leaving earlier could count as the job's regular end."""
        deadline = time.monotonic() + REQUEUED_SECONDS
        while wait and signal.SIGTERM not in self.received and time.monotonic() < deadline:
            time.sleep(0.2)
        return 0

    def _successor(self, words: str) -> int:
        """Where requeueing is not allowed: a new job that starts when this one has ended."""
        script = folder(self.run) / "batch.sh"
        argv = ["sbatch", "--parsable", f"--dependency=afterany:{self.job.id}", "--kill-on-invalid-dep=yes", str(script)]
        code, text = call(argv, 60, outside(self.job.environment))
        job_id = text.strip().split(";")[0].split()[-1] if code == 0 and text.strip() else ""
        if not job_id.isdigit():
            self._status(phase="failed", detail=f"could not requeue: {text.strip()[:200]}")
            return 1
        self._record_submission(job_id, argv, words)
        return 0

    def _record_submission(self, job_id: str, argv: list[str], words: str) -> None:
        receipts = folder(self.run) / "submissions"
        receipts.mkdir(mode=0o700, exist_ok=True)
        number = 1 + max((int(p.stem) for p in receipts.glob("*.json") if p.stem.isdigit()), default=0)
        record = {"number": number, "state": "submitted", "job_id": job_id, "command": argv, "message": words, "t": time.time(),
                  "after": self.job.id}  # fmt: skip
        write_atomic(receipts / f"{number}.json", encode_line(record))

    def _status(self, **fields: Any) -> None:
        """Change status.json between two attempts; the supervisor that wrote it is gone."""
        with contextlib.suppress(OSError, ValueError):
            status = json.loads(self.run.status.read_bytes())
            status |= fields | {"beat": int(status.get("beat") or 0) + 1, "t": time.time()}
            write_atomic(self.run.status, encode_line(status))


def main() -> int:
    os.umask(0o077)
    run = RunDir(Path(sys.argv[1]).resolve())
    if not run.run_toml.is_file():
        print(f"refused: {run.path} is not a run directory", file=sys.stderr)
        return 2
    return RunningJob(run).execute()


if __name__ == "__main__":
    sys.exit(main())
