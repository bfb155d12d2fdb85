"""Submitting a run exactly once: a receipt before sbatch is called, and what became of it after.

States of a receipt: `submitting` (sbatch was or is being called), `submitted`, `refused` (Slurm's words), `unknown` (no
answer: the job may exist), `absent` (Slurm was asked later and knows no such job). Nothing is submitted again while a
receipt is `submitting` or `unknown`.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.wire import RunDir, encode_line, read_record, write_atomic
from molt_tui.errors import Refused
from molt_tui.slurm.commands import Slurm
from molt_tui.slurm.parse import Job
from molt_tui.slurm.render import job_name, marker

# After this long without a trace in the queue, asked twice, a request that got no answer is taken as lost.
ABSENT_SECONDS = 30.0
# sbatch itself gives up long before; a receipt that is still `submitting` after this was left by a killed program.
STALE_SECONDS = 120.0
OPEN_STATES = ("submitting", "unknown")


@dataclass(frozen=True)
class Receipt:
    """One submission. `t` and `checked` (when Slurm was last asked for it and knew nothing) are epoch seconds."""

    number: int
    state: str
    job_id: str | None = None
    message: str = ""
    t: float = 0.0
    checked: float | None = None
    first_absent: float | None = None
    cluster: str = ""

    @property
    def open(self) -> bool:
        return self.state in OPEN_STATES


def folder(run: RunDir) -> Path:
    return run.path / "slurm" / "submissions"


def receipts(run: RunDir) -> list[Receipt]:
    """Every submission of a run, oldest first; unreadable ones are left out."""
    found = []
    for path in folder(run).glob("*.json"):
        try:
            record = json.loads(read_record(path))
            known = {k: v for k, v in record.items() if k in Receipt.__dataclass_fields__}
            found.append(Receipt(**known))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            continue
    return sorted(found, key=lambda r: r.number)


def latest(run: RunDir) -> Receipt | None:
    found = receipts(run)
    return found[-1] if found else None


def write(run: RunDir, receipt: Receipt) -> Receipt:
    folder(run).mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {k: v for k, v in asdict(receipt).items() if v is not None}
    write_atomic(folder(run) / f"{receipt.number}.json", encode_line(record))
    return receipt


@contextmanager
def _only_one(run: RunDir) -> Iterator[None]:
    """Two programs on this host never submit the same run at once; the receipts guard against the rest."""
    path = run.path / "slurm"
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"{run.path.name} is being submitted by another molt-tui right now") from None
        except OSError:
            pass  # a file system without locks: the receipts alone guard
        yield
    finally:
        os.close(descriptor)


def submit(slurm: Slurm, run: RunDir, script_text: str, number: int, cluster: str = "", arguments: Sequence[str] = ()) -> Receipt:
    """Write the receipt and the script, call sbatch once, and record what it said.

    Raises Refused when an earlier submission is still open or its job may be alive.
    """
    with _only_one(run):
        before = latest(run)
        if before is not None and before.open:
            raise Refused(f"submission {before.number} of {run.path.name} got no answer yet: it is looked for, not repeated")
        if before is not None and before.number >= number:
            raise Refused(f"submission {number} of {run.path.name} exists already")
        script = run.path / "slurm" / "batch.sh"
        write_atomic(script, script_text.encode())
        receipt = write(run, Receipt(number, "submitting", t=time.time(), cluster=cluster))
        answer = slurm.submit(script, arguments)
        if answer.job_id is not None:
            return write(run, replace(receipt, state="submitted", job_id=answer.job_id, message=answer.message))
        state = "refused" if answer.refused else "unknown"
        return write(run, replace(receipt, state=state, message=answer.message))


def reconcile(run: RunDir, receipt: Receipt, own_jobs: Sequence[Job], now: float) -> Receipt:
    """What the queue says about a submission without an answer. `own_jobs` is a fresh answer of the controller."""
    if not receipt.open:
        return receipt
    found = find(own_jobs, run.path.name, receipt.number)
    if found is not None:
        return write(run, replace(receipt, state="submitted", job_id=found.id, message="found in the queue after no answer"))
    if receipt.state == "submitting" and now - receipt.t < STALE_SECONDS:
        return receipt
    first = receipt.first_absent or now
    if now - first >= ABSENT_SECONDS:
        words = "Slurm never got the request; `molt-tui requeue` submits it again"
        return write(run, replace(receipt, state="absent", checked=now, first_absent=first, message=words))
    return write(run, replace(receipt, state="unknown", checked=now, first_absent=first,
                              message=receipt.message or "no answer"))  # fmt: skip


def find(jobs: Sequence[Job], run_id: str, number: int) -> Job | None:
    """The job of one submission, by its comment; by its name where the site rewrites comments."""
    own = marker(run_id, number)
    for job in jobs:
        if own == job.comment or own in job.comment.replace('"', " ").split():
            return job
    named = [job for job in jobs if job.name == job_name(run_id) and "molt:" not in job.comment]
    return named[-1] if named else None
