"""The `runs` and `attempts` tables: what a run directory says about itself, and the state it is in."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.wire import OWNER_FILE, RunDir, read_record
from molt_tui.store import rows
from molt_tui.store.liveness import Beat, JobAnswer, observe, process_alive, state_of, state_on_cluster

ANSWER_STALE_S = 240.0  # Slurm is asked at least every 60 s; this much older means that it did not answer
SETTLED_S = 600.0  # seconds without a change after which an ended run is only checked for changed files


@dataclass(frozen=True)
class Snapshot:
    """The small records of one run directory, read once. `attempts` are the numbers claimed, `exits` their exit records,
    `owner` says which supervisor claimed the newest."""

    path: Path
    meta: dict[str, Any]
    status: dict[str, Any]
    attempts: tuple[int, ...]
    exits: dict[int, dict[str, Any]]
    owner: dict[str, Any]
    newest_change: float

    @property
    def attempt(self) -> int | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def exit_reason(self) -> str | None:
        """Reason of the newest attempt's end; None while it has no exit record."""
        reason = self.exits.get(self.attempt or 0, {}).get("reason")
        return rows.string(reason)

    @property
    def phase(self) -> str | None:
        """Phase of the newest attempt; "starting" while the status is still that of an older one."""
        if not self.status:
            return "starting" if self.attempts else None
        older = (rows.integer(self.status.get("attempt")) or 0) < (self.attempt or 0)
        return "starting" if older else rows.string(self.status.get("phase"))


def read_json(path: Path) -> dict[str, Any] | None:
    """One JSON object; None when the file is missing, torn or something else."""
    try:
        record = json.loads(read_record(path))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_snapshot(run: RunDir) -> Snapshot | None:
    """The run's records; None without a readable meta.json."""
    meta = read_json(run.meta)
    if meta is None:
        return None
    status = read_json(run.status) or {}
    attempts = tuple(n for n in run.attempt_numbers() if n < 1 << 31)
    exits = {n: record for n in attempts if (record := read_json(run.attempt(n) / "exit.json")) is not None}
    times = [_modified(run.status), _modified(run.notes), *(_modified(run.attempt(n) / "exit.json") for n in attempts[-1:])]
    return Snapshot(run.path, meta, status, attempts, exits, supervisor_of(run), max(times))


def supervisor_of(run: RunDir) -> dict[str, Any]:
    """Who claimed the newest attempt: {pid, start, boot, host}; empty when it is not known."""
    numbers = run.attempt_numbers()
    return (read_json(run.attempt(numbers[-1]) / OWNER_FILE) or {}) if numbers else {}


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def signature(path: str) -> str:
    """Changes when a run that ended is touched again: a new attempt, status, note or recorded rollout.

    Plain text instead of paths, because it is asked of every run there is.
    """
    parts = []
    for name in ("meta.json", "status.json", "notes.jsonl", "attempts", "rollouts"):
        try:
            found = os.stat(f"{path}/{name}")
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{found.st_mtime_ns}.{found.st_size}")
    return " ".join(parts)


def store_snapshot(connection: sqlite3.Connection, snapshot: Snapshot, now: float) -> int:
    """Insert or update the run, its attempts and the observation of its beat; returns the run's number."""
    run_id = rows.string(snapshot.path.name)
    found = connection.execute("SELECT num FROM runs WHERE id = ?", (run_id,)).fetchone()
    num = found["num"] if found else None
    status, attempt = snapshot.status, snapshot.attempt
    beat = _store_beat(connection, num, rows.integer(status.get("beat")), now)
    alive = process_alive(snapshot.owner) if snapshot.exit_reason is None else None
    if (rows.string(snapshot.meta.get("cluster")) or "local") == "local":
        state, why = state_of(phase=snapshot.phase, exit_reason=snapshot.exit_reason, alive=alive, beat=beat, now=now)
    else:
        job = _job_answer(connection, num, now)
        state, why = state_on_cluster(phase=snapshot.phase, exit_reason=snapshot.exit_reason, job=job, beat=beat, now=now)
    owner = snapshot.owner
    record = {
        **_meta_columns(snapshot), **_status_columns(snapshot), "id": run_id, "state": state, "attempt": attempt,
        "attempts": len(snapshot.attempts),
        "supervisor_host": rows.string(owner.get("host")) or rows.string(status.get("host")),
        "supervisor_pid": rows.integer(owner.get("pid")) or rows.integer(status.get("pid")),
    }  # fmt: skip
    if why:
        record["detail"] = why
    names = ", ".join(f'"{name}"' for name in record)
    updates = ", ".join(f'"{name}" = excluded."{name}"' for name in record if name != "id")
    marks = ", ".join("?" * len(record))
    num = connection.execute(
        f"INSERT INTO runs ({names}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {updates} RETURNING num",
        tuple(record.values()),
    ).fetchone()["num"]
    connection.execute(
        "INSERT INTO observations (run_num, beat, seen, changed) VALUES (?, ?, ?, ?) ON CONFLICT (run_num) DO UPDATE SET"
        " beat = excluded.beat, seen = excluded.seen, changed = excluded.changed",
        (num, beat.value, beat.first_seen, beat.changed),
    )
    connection.executemany("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                           [_attempt_row(num, n, snapshot.exits.get(n, {})) for n in snapshot.attempts])  # fmt: skip
    return num


def _job_answer(connection: sqlite3.Connection, num: int | None, now: float) -> JobAnswer | None:
    """What Slurm last said of the run's job; None when it was never asked."""
    row = connection.execute("SELECT * FROM slurm_jobs WHERE run_num = ?", (num,)).fetchone() if num is not None else None
    if row is None:
        return None
    answered = row["answered"]
    stale = answered is not None and now - answered > ANSWER_STALE_S and not row["ended"]
    words = f"as of {time.strftime('%H:%M', time.localtime(answered))}, Slurm does not answer" if stale else ""
    return JobAnswer(row["state"], row["words"] or "", bool(row["ended"]), words)


def _store_beat(connection: sqlite3.Connection, num: int | None, value: int | None, now: float) -> Beat:
    row = None
    if num is not None:
        row = connection.execute("SELECT beat, seen, changed FROM observations WHERE run_num = ?", (num,)).fetchone()
    before = Beat(row["beat"], row["seen"], row["changed"]) if row else None
    return observe(before, value, now)


def _meta_columns(snapshot: Snapshot) -> dict[str, Any]:
    meta = snapshot.meta
    text = {k: rows.string(meta.get(k)) for k in ("group", "parent", "recipe", "user", "host", "commit")}
    tags = meta.get("tags")
    return {
        **text, "path": rows.string(str(snapshot.path)), "name": rows.string(meta.get("name")) or snapshot.path.name,
        "cluster": rows.string(meta.get("cluster")) or "local", "created": rows.number(meta.get("created")),
        "command": rows.dump(meta.get("command")) if isinstance(meta.get("command"), list) else None,
        "own_tags": rows.dump([str(t) for t in tags] if isinstance(tags, list) else []),
    }  # fmt: skip


def _status_columns(snapshot: Snapshot) -> dict[str, Any]:
    """Columns that follow the newest status; `updated` is the newest time that the run's own writers gave."""
    status, last = snapshot.status, snapshot.exits.get(snapshot.attempt or 0, {})
    times = [rows.number(r.get("t")) for r in (status, *snapshot.exits.values())] + [rows.number(snapshot.meta.get("created"))]
    numbers = {k: rows.integer(status.get(k)) for k in ("step", "version", "max_steps", "last_checkpoint", "beat")}
    if numbers["step"] is None:
        numbers["step"] = rows.integer(last.get("step"))
    return {
        **numbers, "phase": rows.string(status.get("phase")), "updated": max((t for t in times if t is not None), default=None),
        "detail": rows.string(last.get("detail")) or rows.string(status.get("detail")) or "",
        "job_id": rows.string(status.get("job_id")), "last_error": rows.string(status.get("last_error")),
    }  # fmt: skip


def _attempt_row(num: int, attempt: int, record: dict[str, Any]) -> tuple:
    resumable = record.get("resumable")
    return (num, attempt, rows.string(record.get("reason")), rows.string(record.get("detail")),
            rows.integer(record.get("code")), rows.integer(record.get("signal")), rows.integer(record.get("step")),
            None if resumable is None else int(bool(resumable)), rows.number(record.get("t")))  # fmt: skip


RUN_TABLES = ("attempts", "notes", "cursors", "observations", "slurm_jobs", "event_rows", "latest_rows", "metric_rows",
              "rollout_rows")  # fmt: skip


def forget_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Remove every row of a run; its directory is the caller's business."""
    found = connection.execute("SELECT num FROM runs WHERE id = ?", (run_id,)).fetchone()
    if found is None:
        return
    for table in RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_num = ?", (found["num"],))
    connection.execute("DELETE FROM runs WHERE num = ?", (found["num"],))
