"""Recorded rollouts: which steps have some, the records of a step, and a search through their text."""

from __future__ import annotations

import sqlite3
from typing import Any

from molt_tui.errors import NotFound, Refused
from molt_tui.services.runs import Run
from molt_tui.store.database import Store
from molt_tui.store.rollouts import read_rollouts, rollout_files


def steps(run: Run) -> list[int]:
    """Steps with recorded rollouts, in order."""
    return sorted({step for _, step, _ in rollout_files(run.directory)})


def rollouts(run: Run, step: int | None = None) -> list[dict[str, Any]]:
    """The records (protocol.TraceRollout as plain objects) of one step, by default the newest; the newest attempt's file.

    Raises NotFound.
    """
    files = rollout_files(run.directory)
    if not files:
        raise NotFound(f"{run.id} has no recorded rollouts (trace.rollouts_per_step, or no step is done yet)")
    wanted = files[-1][1] if step is None else step
    paths = [path for _, at, path in files if at == wanted]
    if not paths:
        known = sorted({at for _, at, _ in files})
        raise NotFound(f"{run.id} has no recorded rollouts of step {step}; it has {known[0]} to {known[-1]}")
    return list(read_rollouts(paths[-1]))


def summaries(store: Store, run: Run, step: int) -> list[dict[str, Any]]:
    """Rows of the `rollouts` view for one step, the newest attempt's."""
    sql = (
        "SELECT * FROM rollout_rows WHERE run_num = ? AND step = ? AND attempt ="
        " (SELECT max(attempt) FROM rollout_rows WHERE run_num = ? AND step = ?) ORDER BY id"
    )
    return [dict(row) for row in store.rows(sql, (run.num, step, run.num, step))]


def search(store: Store, text: str, run: Run | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
    """Rollouts whose text matches an FTS5 query, best first: {run, step, attempt, rollout_id, reward, excerpt}."""
    sql = (
        "SELECT r.id AS run, o.step, o.attempt, o.rollout_id, o.reward,"
        " snippet(rollout_rows_fts, 0, '', '', '…', 12) AS excerpt FROM rollout_rows_fts"
        " JOIN rollout_rows o ON o.id = rollout_rows_fts.rowid JOIN runs r ON r.num = o.run_num"
        " WHERE rollout_rows_fts MATCH ? AND (? IS NULL OR o.run_num = ?) ORDER BY rank LIMIT ?"
    )
    num = run.num if run else None
    try:
        return [dict(row) for row in store.connection.execute(sql, (text, num, num, limit))]
    except sqlite3.OperationalError as error:
        raise Refused(f"cannot search for {text!r}: {error}; put words with other characters in double quotes") from error
