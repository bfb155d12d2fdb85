"""One squeue call for all own runs, shared through the local database by every molt-tui of this user.

At most one call every 15 s while something runs, every 60 s while everything waits, none when nothing lives; slower while
the controller does not answer. A job that the queue no longer knows is looked up in accounting once.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.wire import RunDir
from molt_tui.errors import MoltError
from molt_tui.slurm import submit
from molt_tui.slurm.commands import NoAnswer, Slurm, SlurmError
from molt_tui.slurm.parse import Job
from molt_tui.slurm.state import JobView, view_of_accounting, view_of_job
from molt_tui.slurm.submit import Receipt
from molt_tui.store.database import Store

RUNNING_SECONDS, PENDING_SECONDS = 15.0, 60.0
RETRY_MOST_SECONDS = 300.0
KIND = "jobs"
BEGUN = ("starting", "running", "paused", "stopping")


@dataclass(frozen=True)
class Live:
    """A run whose job may live, with its newest submission."""

    run_num: int
    path: Path
    receipt: Receipt


@dataclass
class Report:
    """`asked`: whether Slurm was called now; `error`: why it gave no answer; `changed`: runs with a new answer."""

    asked: bool = False
    error: str = ""
    changed: list[Path] = field(default_factory=list)


def interval(states: Sequence[str], failures: int) -> float:
    """Seconds to the next call. `states` are those of the live jobs: "active" or "queued"."""
    base = RUNNING_SECONDS if "active" in states else PENDING_SECONDS
    return min(base * 2 ** min(failures, 5), max(RETRY_MOST_SECONDS, base)) if failures else base


def poll(store: Store, slurm: Slurm, cluster: str, clock: Callable[[], float] = time.time) -> Report:
    """Ask Slurm if it is time to, and store what it says of every live run. Never raises for what Slurm does."""
    now = clock()
    select = "SELECT r.num, r.path, r.state AS run_state, j.state FROM runs r LEFT JOIN slurm_jobs j ON j.run_num = r.num" \
             " WHERE r.cluster = ? AND (j.run_num IS NULL OR j.ended = 0)"  # fmt: skip
    found = store.rows(select, (cluster,))
    if not found or not _claim(store, cluster, [_pace_of(row) for row in found], now):
        return Report()
    live = []
    for row in found:
        receipt = submit.latest(RunDir(row["path"]))
        if receipt is None:
            _forget(store, row["num"], cluster)
        else:
            live.append(Live(row["num"], Path(row["path"]), receipt))
    if not live:
        return Report()
    return _ask(store, slurm, cluster, live, clock)


def _pace_of(row: sqlite3.Row) -> str:
    """A run that reports by itself has begun, whatever Slurm last said of its job."""
    return "active" if row["run_state"] in BEGUN else row["state"] or "active"


def _claim(store: Store, cluster: str, states: Sequence[str], now: float) -> bool:
    """Take the right to ask now; of several programs one gets it."""
    with store.write() as connection:
        row = connection.execute(
            "SELECT asked, failures FROM slurm_calls WHERE cluster = ? AND kind = ?", (cluster, KIND)
        ).fetchone()
        if row is not None and 0 <= now - row["asked"] < interval(states, row["failures"]):
            return False
        connection.execute(
            "INSERT INTO slurm_calls (cluster, kind, asked, failures) VALUES (?, ?, ?, 0) ON CONFLICT (cluster, kind) DO UPDATE"
            " SET asked = excluded.asked",
            (cluster, KIND, now),
        )
    return True


def _ask(store: Store, slurm: Slurm, cluster: str, live: Sequence[Live], clock: Callable[[], float]) -> Report:
    """One call, by id; by user when a submission without an answer has to be found."""
    unanswered = any(one.receipt.open for one in live)
    ids = sorted({one.receipt.job_id for one in live if one.receipt.job_id}, key=int)
    try:
        jobs = slurm.own_jobs() if unanswered else slurm.jobs(ids)
    except (NoAnswer, SlurmError, MoltError) as error:
        with store.write() as connection:
            connection.execute("UPDATE slurm_calls SET failures = failures + 1, error = ? WHERE cluster = ? AND kind = ?",
                               (str(error), cluster, KIND))  # fmt: skip
        return Report(True, str(error))
    now = clock()
    by_id = {job.id: job for job in jobs}
    report = Report(True)
    for one in live:
        receipt = one.receipt
        if receipt.open:
            receipt = submit.reconcile(RunDir(one.path), receipt, jobs, now)
        _store(store, one.run_num, cluster, receipt, by_id.get(receipt.job_id or ""), slurm, now)
        report.changed.append(one.path)
    with store.write() as connection:
        connection.execute("UPDATE slurm_calls SET answered = ?, failures = 0, error = NULL WHERE cluster = ? AND kind = ?",
                           (now, cluster, KIND))  # fmt: skip
    return report


def _store(store: Store, run_num: int, cluster: str, receipt: Receipt, job: Job | None, slurm: Slurm, now: float) -> None:
    view, ended = _view(receipt, job, slurm)
    record = {
        "run_num": run_num, "cluster": cluster, "job_id": receipt.job_id, "slurm_state": job.state if job else None,
        "reason": job.reason if job else None, "state": view.state, "words": view.words, "hopeless": int(view.hopeless),
        "nodes": job.nodes if job else None, "node_list": job.node_list if job else None, "start": job.start if job else None,
        "end": job.end if job else None, "answered": now, "ended": int(ended),
    }  # fmt: skip
    write_row(store, record)


def write_row(store: Store, record: dict[str, object]) -> None:
    names = ", ".join(f'"{name}"' for name in record)
    with store.write() as connection:
        connection.execute(f"INSERT OR REPLACE INTO slurm_jobs ({names}) VALUES ({', '.join('?' * len(record))})",
                           tuple(record.values()))  # fmt: skip


def _view(receipt: Receipt, job: Job | None, slurm: Slurm) -> tuple[JobView, bool]:
    """(what it means for the run, whether nothing more needs to be asked)."""
    if job is not None:
        view = view_of_job(job)
        return view, view.state not in ("queued", "active")
    if receipt.open:
        return JobView("queued", "the submission got no answer from Slurm; its job is looked for, not submitted again"), False
    if receipt.state == "refused":
        return JobView("failed", f"Slurm refused the job: {receipt.message}"), True
    if receipt.job_id is None:
        return JobView("lost", receipt.message or "it was never submitted"), True
    try:
        found = slurm.ended(receipt.job_id)
    except (NoAnswer, MoltError):
        found = None
    if found is None:
        return JobView("lost", f"Slurm no longer knows job {receipt.job_id}, and it left no exit record"), True
    view = view_of_accounting(found)
    # Accounting trails the queue by some seconds and may still call a job that ended running.
    return (view, True) if found.end is not None else (JobView("active", ""), False)


def _forget(store: Store, run_num: int, cluster: str) -> None:
    """A run without any submission has no job to ask for."""
    words = "it was never submitted; `molt-tui requeue` does"
    write_row(store, {"run_num": run_num, "cluster": cluster, "state": "draft", "words": words, "ended": 1})


def remember_submission(store: Store, run_num: int, cluster: str, receipt: Receipt, now: float) -> None:
    """The state right after a submission, before Slurm is asked."""
    words = "submitted" if receipt.state == "submitted" else "the submission got no answer from Slurm; its job is looked for"
    write_row(store, {"run_num": run_num, "cluster": cluster, "job_id": receipt.job_id, "state": "queued", "words": words,
                      "answered": now, "ended": 0})  # fmt: skip


def cached(
    store: Store, cluster: str, kind: str, fresh_seconds: float, ask: Callable[[], object], now: float, *, older: bool = True
) -> tuple[object, float]:
    """(answer, when it was given) of another query, asked at most every `fresh_seconds` by all programs together.

    Without an answer it is asked again later and later, and an older answer serves meanwhile; where none is wanted (not
    `older`) it is asked now. Raises what `ask` raises, or NoAnswer, when there is nothing to serve.
    """
    found = store.rows("SELECT asked, answered, failures, error, text FROM slurm_calls WHERE cluster = ? AND kind = ?",
                       (cluster, kind))  # fmt: skip
    row = found[0] if found else None
    known = row is not None and bool(row["text"]) and row["answered"] is not None
    if row is not None and known and 0 <= now - row["answered"] < fresh_seconds:
        return json.loads(row["text"]), row["answered"]
    wait = min(RUNNING_SECONDS * 2 ** min(row["failures"], 5), RETRY_MOST_SECONDS) if row is not None else 0.0
    if row is not None and older and row["failures"] and 0 <= now - row["asked"] < wait:
        if known:
            return json.loads(row["text"]), row["answered"]
        raise NoAnswer(row["error"] or "no answer")
    try:
        answer = ask()
    except NoAnswer as error:
        _remember_failure(store, cluster, kind, str(error), now)
        if older and row is not None and known:
            return json.loads(row["text"]), row["answered"]
        raise
    with store.write() as connection:
        connection.execute(
            "INSERT OR REPLACE INTO slurm_calls (cluster, kind, asked, answered, failures, text) VALUES (?, ?, ?, ?, 0, ?)",
            (cluster, kind, now, now, json.dumps(answer)),
        )
    return answer, now


def _remember_failure(store: Store, cluster: str, kind: str, error: str, now: float) -> None:
    with store.write() as connection:
        connection.execute(
            "INSERT INTO slurm_calls (cluster, kind, asked, failures, error) VALUES (?, ?, ?, 1, ?) ON CONFLICT (cluster, kind)"
            " DO UPDATE SET asked = excluded.asked, failures = failures + 1, error = excluded.error",
            (cluster, kind, now, error),
        )
