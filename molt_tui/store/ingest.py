"""From run directories to the database: incremental, idempotent, and never in the way of a run.

Every stream of an attempt has a cursor that is stored in the same transaction as its rows, so that a cut at any moment
loses nothing and repeats nothing. Metrics come from the engine's "events" stream only, so that the result does not depend
on the order in which streams are read.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine.wire import Cursor, EventReader, RunDir
from molt_tui.errors import StoreError
from molt_tui.store import rows
from molt_tui.store.database import Store
from molt_tui.store.liveness import FINAL_STATES
from molt_tui.store.notes import ingest_notes
from molt_tui.store.rollouts import ingest_rollouts
from molt_tui.store.runs import SETTLED_S, Snapshot, read_snapshot, signature, store_snapshot

STREAMS = ("events", "supervisor")


@dataclass
class Report:
    """What one ingest did; `problems` names run directories that could not be read, one line each."""

    runs: int = 0
    events: int = 0
    metrics: int = 0
    rollouts: int = 0
    bad_lines: int = 0
    problems: list[str] = field(default_factory=list)


def find_runs(root: Path, known: Container[str] = ()) -> list[str]:
    """Paths of the run directories directly below `root`: folders with a meta.json; those known need no look."""
    try:
        with os.scandir(root) as entries:
            names = sorted(e.path for e in entries if not e.name.startswith(".") and (e.path in known or _is_folder(e)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {root}: {error.strerror}") from error
    return [name for name in names if name in known or os.path.exists(f"{name}/meta.json")]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, say
        return False


def ingest(
    store: Store, paths: Iterable[str | Path] | None = None, *, rollouts: bool = True,
    clock: Callable[[], float] = time.time, skip: Callable[[str], bool] = lambda path: False,
) -> Report:  # fmt: skip
    """Bring the database up to date with run directories: those given, or all below runs_root and all known ones.

    `rollouts=False` leaves the recorded rollouts for later: they are the only part that is large per step.
    `clock` is this reader's own, for liveness. `skip` names runs that need no look this time if they ended a while ago.
    Raises StoreError; a run that cannot be read becomes a line of the report.
    """
    report = Report()
    select = "SELECT r.path, o.signature FROM runs r LEFT JOIN observations o ON o.run_num = r.num"
    signatures: dict[str, str | None] = {row["path"]: row["signature"] for row in store.rows(select)}
    if paths is None:
        look = {path for path, mark in signatures.items() if mark is None or not skip(path)}
        there = {path for path in look if os.path.isdir(path)}
        new = (path for path in find_runs(store.home.runs_root, signatures) if path not in signatures)
        paths = sorted({*new, *there})
        _mark_lost(store, look - there)
    for path in map(str, paths):
        mark = signature(path)
        if signatures.get(path) in (f"{mark}+", f"{mark}{'+' if rollouts else ''}"):
            continue
        try:
            _ingest_run(store, RunDir(path), mark, rollouts, clock, report)
        except OSError as error:
            report.problems.append(f"{os.path.basename(path)}: {error.strerror or error}")
    return report


def _mark_lost(store: Store, gone: set[str]) -> None:
    """A run whose directory is gone is not shown as if it were at work."""
    live = f"state NOT IN ({', '.join(repr(state) for state in sorted(FINAL_STATES))})"
    if gone and store.rows(f"SELECT 1 FROM runs WHERE {live} LIMIT 1"):
        with store.write() as connection:
            connection.executemany(f"UPDATE runs SET state = 'lost', detail = 'its directory is gone' WHERE path = ? AND {live}",
                                   [(path,) for path in gone])  # fmt: skip


def _ingest_run(store: Store, run: RunDir, mark: str, rollouts: bool, clock: Callable[[], float], report: Report) -> None:
    """One run directory; the snapshot is taken first, so that a final state is only stored when its events are in."""
    snapshot = read_snapshot(run)
    if snapshot is None:
        report.problems.append(f"{run.path.name}: meta.json cannot be read")
        return
    with store.write() as connection:
        run_num = store_snapshot(connection, snapshot, clock())
        ingest_notes(connection, run_num, run)
    for attempt in snapshot.attempts:
        for stream in STREAMS:
            _ingest_stream(store, run, run_num, attempt, stream, report)
    if rollouts:
        report.rollouts += ingest_rollouts(store, run_num, run)
    if _settled(store, run_num, snapshot, clock()):
        with store.write() as connection:
            connection.execute("UPDATE observations SET signature = ? WHERE run_num = ?",
                               (f"{mark}{'+' if rollouts else ''}", run_num))  # fmt: skip
    report.runs += 1


def _settled(store: Store, run_num: int, snapshot: Snapshot, now: float) -> bool:
    """A run that ended a while ago is only looked at again when its directory shows a change.

    A run on a cluster may start again by itself: it ends when Slurm knows no live job of it.
    """
    if snapshot.exit_reason is None or now - snapshot.newest_change <= SETTLED_S:
        return False
    return not store.rows("SELECT 1 FROM slurm_jobs WHERE run_num = ? AND ended = 0", (run_num,))


def _ingest_stream(store: Store, run: RunDir, run_num: int, attempt: int, stream: str, report: Report) -> None:
    folder = run.attempt(attempt) / stream
    where = (run_num, attempt, stream)
    select = "SELECT file, offset, bad_lines FROM cursors WHERE run_num = ? AND attempt = ? AND stream = ?"
    found = store.rows(select, where)
    cursor, bad = (Cursor(found[0]["file"], found[0]["offset"]), found[0]["bad_lines"]) if found else (Cursor(), 0)
    reader = EventReader(folder, cursor, bad)
    for batch in reader.batches():
        with store.write() as connection:
            now_at = connection.execute(select, where).fetchone()
            if now_at is not None and (now_at["file"], now_at["offset"]) > (reader.cursor.index, reader.cursor.offset):
                return  # another process is ahead
            report.metrics += _insert(connection, run_num, attempt, stream, batch)
            connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?, ?)",
                               (*where, reader.cursor.index, reader.cursor.offset, reader.bad_lines))  # fmt: skip
        report.events += len(batch)
    report.bad_lines += reader.bad_lines - bad


def _insert(connection: sqlite3.Connection, run_num: int, attempt: int, stream: str, batch: list[dict]) -> int:
    """Insert one batch; returns the number of metric rows. A sequence number that is already there is left alone."""
    events = [r for e in batch if (r := rows.event_row(run_num, attempt, stream, e)) is not None]
    connection.executemany("INSERT OR IGNORE INTO event_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", events)
    if stream != "events":
        return 0
    metrics = list(_metric_rows(connection, run_num, attempt, batch))
    metrics.sort(key=lambda row: row[:3])  # stable: a repeated (key, step) keeps the order of its events
    connection.executemany("INSERT OR REPLACE INTO metric_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", metrics)
    newest = {row[1]: row for row in metrics}
    connection.executemany(
        "INSERT INTO latest_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_num, key_num) DO UPDATE SET"
        " step = excluded.step, attempt = excluded.attempt, t = excluded.t, value = excluded.value,"
        " special = excluded.special, json = excluded.json"
        " WHERE (excluded.attempt, excluded.step) >= (latest_rows.attempt, latest_rows.step)",
        list(newest.values()),
    )
    return len(metrics)


def _metric_rows(connection: sqlite3.Connection, run_num: int, attempt: int, batch: list[dict]) -> Iterator[rows.MetricRow]:
    """Rows of metric_rows; events without a step or a sequence number cannot be placed and carry no metrics."""
    keys = KeyNumbers(connection)
    for event in batch:
        step = rows.integer(event.get("step"))
        if step is None or rows.integer(event.get("seq")) is None:
            continue
        t = rows.number(event.get("t"))
        for key, value in rows.metric_items(event):
            yield (run_num, keys[key], step, attempt, t, *value)


class KeyNumbers(dict[str, int]):
    """Metric name -> its number; a new name gets the next one in the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__((row[1], row[0]) for row in connection.execute("SELECT num, name FROM keys"))
        self._connection = connection

    def __missing__(self, key: str) -> int:
        name = rows.string(key) or ""
        if name != key and name in self:
            number = self[name]
        else:
            number = self._connection.execute("INSERT INTO keys (name) VALUES (?)", (name,)).lastrowid
            self[name] = number
        self[key] = number
        return number
