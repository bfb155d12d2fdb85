"""Runs: bring them up to date, list them, find one by what a person typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
    location: str

    @property
    def path(self) -> Path:
        return Path(self.location)

    @property
    def directory(self) -> RunDir:
        return RunDir(self.location)

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
_REWARD = (
    "(SELECT coalesce(m.value, m.special) FROM latest_rows m WHERE m.run_num = r.num AND m.key_num ="
    " (SELECT num FROM keys WHERE name = 'reward/mean'))"
)
_COLUMNS = {"reward": _REWARD, "location": "r.path"}  # what is not a column of the same name
_FIELDS = [f.name for f in fields(Run)]
_RUN = ", ".join(f"""{_COLUMNS.get(name, f'r."{name}"')} AS "{name}\"""" for name in _FIELDS)
_TAGS, _SCORE = _FIELDS.index("tags"), _FIELDS.index("reward")
_MARK = "(SELECT total(c.file * 1e10 + c.offset) FROM cursors c WHERE c.run_num = r.num) AS mark"
_SELECT = f"SELECT {_RUN} FROM runs r"
_NEWS = (
    f"SELECT {_RUN}, h.run_num AS changed_num, h.revision, o.changed, {_MARK}, (SELECT n.text FROM notes n WHERE"
    " n.run_num = r.num AND n.action = 'note' ORDER BY n.position DESC LIMIT 1) AS note FROM changes h"
    " LEFT JOIN runs r ON r.num = h.run_num LEFT JOIN observations o ON o.run_num = r.num WHERE h.revision > ?"
)


def refresh(store: Store, *, rollouts: bool = False, skip: Callable[[str], bool] = lambda path: False) -> Report:
    """Ingest what is new in every run directory, look again which runs live, and ask Slurm about jobs when it is time.

    `skip` names runs that need no look this time if they ended a while ago.
    """
    report = ingest(store, rollouts=rollouts, skip=skip)
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


def runs_of_group(store: Store, name: str) -> list[Run]:
    """Every run of a group, oldest first; empty when there is none."""
    return [_run(row) for row in store.rows(_SELECT + ' WHERE r."group" = ? ORDER BY r.created, r.id', (name,))]


@dataclass(frozen=True)
class Observed:
    """`beat`: when this reader, by its own clock (seconds since the epoch), last saw the beat change; None if never.
    `mark` grows whenever more of the run's events are in the database."""

    beat: float | None
    mark: float


def observed(store: Store, run: Run | None = None) -> dict[str, Observed]:
    """What this reader has seen of every run, or of one, by run id."""
    sql = f"SELECT r.id, o.changed, {_MARK} FROM runs r LEFT JOIN observations o ON o.run_num = r.num"
    found = store.rows(sql) if run is None else store.rows(f"{sql} WHERE r.num = ?", (run.num,))
    return {row["id"]: Observed(row["changed"], row["mark"]) for row in found}


@dataclass(frozen=True)
class News:
    """What is new since a revision: (run, what this reader observed, newest note) of every run that changed, numbers of
    runs that are gone. `of` tells one database from another that took its place: nothing of the old one holds then."""

    of: str
    revision: int
    runs: list[tuple[Run, Observed, str]]
    gone: list[int]


def news(store: Store, before: News | None = None) -> News:
    """Everything, or what is new since `before`."""
    stamp = store.rows("SELECT stamp FROM identity")[0]["stamp"]
    since = before.revision if before is not None and before.of == stamp else 0
    found = store.rows(_NEWS, (since,))
    return News(
        stamp,
        max((row["revision"] for row in found), default=since),
        [
            (_run(row[: len(_FIELDS)]), Observed(row["changed"], row["mark"]), row["note"] or "")
            for row in found
            if row["num"] is not None
        ],
        [row["changed_num"] for row in found if row["num"] is None],
    )


def as_json(run: Run) -> dict[str, Any]:
    """The object that `runs --json` promises."""
    from engine.wire import to_wire

    return {name: to_wire(getattr(run, name)) for name in JSON_FIELDS}


def attempts(store: Store, run: Run) -> list[dict[str, Any]]:
    """One object per attempt, oldest first; `reason` is None while it has no exit record."""
    sql = "SELECT attempt, reason, detail, code, signal, step, resumable, t FROM attempts WHERE run_num = ? ORDER BY attempt"
    return [dict(row) for row in store.rows(sql, (run.num,))]


def notes(store: Store, run: Run) -> list[dict[str, Any]]:
    """Notes and tag changes in the order in which they were written."""
    sql = "SELECT t, who, action, text FROM notes WHERE run_num = ? ORDER BY position"
    return [dict(row) for row in store.rows(sql, (run.num,))]


def _run(row: Sequence[Any]) -> Run:
    """From the columns of _RUN."""
    values = list(row)
    values[_TAGS] = () if values[_TAGS] in (None, "[]") else tuple(json.loads(values[_TAGS]))
    values[_SCORE] = None if values[_SCORE] is None else float(values[_SCORE])
    return Run(*values)
