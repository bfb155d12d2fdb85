"""Runs: bring them up to date, list them, find one by what a person typed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.wire import RunDir
from molt_tui.errors import NotFound, Refused
from molt_tui.store.database import Store
from molt_tui.store.ingest import Report, ingest
from molt_tui.store.liveness import FINAL_STATES
from molt_tui.text import clean


@dataclass(frozen=True)
class Run:
    """One run as the database knows it. `created` and `updated` are seconds since the epoch by the run's own writers;
    `reward` is the newest reward/mean; None means not reported."""

    num: int
    id: str
    name: str
    group: str | None
    recipe: str | None
    state: str
    step: int | None
    max_steps: int | None
    version: int | None
    attempts: int
    attempt: int | None
    created: float | None
    updated: float | None
    reward: float | None
    job_id: str | None
    cluster: str
    tags: tuple[str, ...]
    detail: str
    last_checkpoint: int | None
    last_error: str | None
    host: str | None
    supervisor_host: str | None
    supervisor_pid: int | None
    path: Path

    @property
    def directory(self) -> RunDir:
        return RunDir(self.path)

    @property
    def final(self) -> bool:
        """Whether nothing of the run is expected to be at work."""
        return self.state in FINAL_STATES


_LIVE_JOBS = (
    "SELECT 1 FROM runs r LEFT JOIN slurm_jobs j ON j.run_num = r.num WHERE r.cluster != 'local'"
    " AND (j.run_num IS NULL OR j.ended = 0) LIMIT 1"
)
JSON_FIELDS = ("id", "name", "group", "recipe", "state", "step", "version", "attempts", "created", "updated", "reward",
               "job_id", "cluster", "tags")  # fmt: skip
_COLUMNS = ("num", "id", "name", "group", "recipe", "state", "step", "max_steps", "version", "attempts", "attempt", "created",
            "updated", "job_id", "cluster", "detail", "last_checkpoint", "last_error", "host", "supervisor_host",
            "supervisor_pid")  # fmt: skip
_SELECT = (
    "SELECT " + ", ".join(f'r."{name}"' for name in _COLUMNS) + ", r.path, r.tags,"
    " (SELECT m.value FROM latest_rows m WHERE m.run_num = r.num AND m.key_num ="
    " (SELECT num FROM keys WHERE name = 'reward/mean')) AS reward FROM runs r"
)


def refresh(store: Store, *, rollouts: bool = False) -> Report:
    """Ingest what is new in every run directory, look again which runs live, and ask Slurm about jobs when it is time."""
    report = ingest(store, rollouts=rollouts)
    if store.rows(_LIVE_JOBS):
        from molt_tui.services.slurm import refresh as refresh_jobs

        changed = refresh_jobs(store)
        if changed:
            report.problems += ingest(store, changed, rollouts=False).problems
    return report


def list_runs(store: Store, *, limit: int | None = None, offset: int = 0) -> list[Run]:
    """Runs, newest first."""
    order = " ORDER BY r.created DESC, r.id DESC LIMIT ? OFFSET ?"
    return [_run(row) for row in store.rows(_SELECT + order, (-1 if limit is None else limit, offset))]


def get_run(store: Store, run_id: str) -> Run:
    """The run with exactly this id; raises NotFound."""
    found = store.rows(_SELECT + " WHERE r.id = ?", (run_id,))
    if not found:
        raise NotFound(f"no run {clean(run_id)!r}; `molt-tui runs` lists them")
    return _run(found[0])


def find_run(store: Store, reference: str) -> Run:
    """The run that a person means: an id, a unique prefix of one, a name (its newest run), or `last`.

    Raises NotFound, or Refused when a prefix fits several runs.
    """
    if reference == "last":
        newest = list_runs(store, limit=1)
        if not newest:
            raise NotFound("there is no run yet; start one with `molt-tui launch RECIPE` or `molt-tui demo`")
        return newest[0]
    for where in ("r.id = ?", "r.name = ? ORDER BY r.created DESC, r.id DESC LIMIT 1"):
        found = store.rows(f"{_SELECT} WHERE {where}", (reference,))
        if found:
            return _run(found[0])
    found = store.rows(_SELECT + " WHERE substr(r.id, 1, ?) = ? ORDER BY r.id", (len(reference), reference))
    if len(found) > 1:
        some = ", ".join(clean(r["id"]) for r in found[:4]) + (", ..." if len(found) > 4 else "")
        raise Refused(f"{clean(reference)!r} fits {len(found)} runs: {some}; type more of the id")
    if not found or not reference:
        raise NotFound(f"no run {clean(reference)!r}; `molt-tui runs` lists them")
    return _run(found[0])


@dataclass(frozen=True)
class Observed:
    """`beat`: when this reader, by its own clock (seconds since the epoch), last saw the beat change; None if never.
    `mark` grows whenever more of the run's events are in the database."""

    beat: float | None
    mark: float


def observed(store: Store, run: Run | None = None) -> dict[str, Observed]:
    """What this reader has seen of every run, or of one, by run id."""
    sql = (
        "SELECT r.id, o.changed, (SELECT total(c.file * 1e10 + c.offset) FROM cursors c WHERE c.run_num = r.num) AS mark"
        " FROM runs r LEFT JOIN observations o ON o.run_num = r.num"
    )
    found = store.rows(sql) if run is None else store.rows(f"{sql} WHERE r.num = ?", (run.num,))
    return {row["id"]: Observed(row["changed"], row["mark"]) for row in found}


def as_json(run: Run) -> dict[str, Any]:
    """The object that `runs --json` promises."""
    return {name: list(run.tags) if name == "tags" else getattr(run, name) for name in JSON_FIELDS}


def attempts(store: Store, run: Run) -> list[dict[str, Any]]:
    """One object per attempt, oldest first; `reason` is None while it has no exit record."""
    sql = "SELECT attempt, reason, detail, code, signal, step, resumable, t FROM attempts WHERE run_num = ? ORDER BY attempt"
    return [dict(row) for row in store.rows(sql, (run.num,))]


def notes(store: Store, run: Run) -> list[dict[str, Any]]:
    """Notes and tag changes in the order in which they were written."""
    sql = "SELECT t, who, action, text FROM notes WHERE run_num = ? ORDER BY position"
    return [dict(row) for row in store.rows(sql, (run.num,))]


def _run(row: Any) -> Run:
    values = {name: row[name] for name in _COLUMNS}
    tags = tuple(json.loads(row["tags"] or "[]"))
    return Run(**values, path=Path(row["path"]), tags=tags, reward=row["reward"])
