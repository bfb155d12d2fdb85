"""Recorded rollouts: which steps have some, the figures and records of a step, one rollout token by token, and search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from molt_tui.errors import NotFound
from molt_tui.services.runs import Run
from molt_tui.store.database import Store
from molt_tui.store.rollouts import ingest_rollouts, rollout_files, step_records
from molt_tui.store.rows import rollout_row, string
from molt_tui.tokens import ORDERS, Place, Rollout, parse

Row = dict[str, Any]
_EXPRESSIONS = {
    "recorded": "o.step",
    "reward": "o.reward",
    "length": "o.sampled",
    "masked": "o.masked * 1.0 / max(o.sampled, 1)",
    "ratio": "max(o.ratio_extreme, 1.0 / o.ratio_extreme)",
    "experts": "o.mismatched * 1.0 / max(o.sampled, 1)",
    "staleness": "o.staleness_max",
}
_COLUMNS = (
    "o.attempt, o.step, o.rollout_id, o.prompt_id, o.group_id, o.reward, o.score, o.advantage, o.turns, o.truncated, o.segments,"
    " o.sampled, o.masked, o.mismatched, o.min_version, o.max_version, o.trained_version, o.staleness_max, o.ratio_mean,"
    " o.ratio_extreme, o.label, o.info"
)
# Rollouts of a run (given twice) at every step, of the newest attempt that has the step.
_NEWEST = (
    "FROM rollout_rows o JOIN runs r ON r.num = o.run_num JOIN (SELECT step, max(attempt) AS attempt FROM rollout_rows"
    " WHERE run_num = ? GROUP BY step) n ON n.step = o.step AND n.attempt = o.attempt WHERE o.run_num = ?"
)
SHOWN_CHARS, PROMPT_CHARS = 4000, 1500


def settings_of(run: Run) -> dict[str, Any]:
    """The run's resolved configuration, flat; empty when it cannot be read."""
    from engine import flags

    try:
        return dict(flags.flatten(flags.load_run_toml(run.directory.run_toml)))
    except (OSError, ValueError):
        return {}


def steps(run: Run) -> list[int]:
    """Steps with recorded rollouts, in order."""
    return sorted({step for _, step, _ in rollout_files(run.directory)})


def step_file(run: Run, step: int | None = None, attempt: int | None = None) -> tuple[int, int, Path]:
    """(attempt, step, path) of the recorded rollouts of a step, by default the newest, of its newest attempt; raises NotFound."""
    files = [file for file in rollout_files(run.directory) if attempt is None or file[0] == attempt]
    if not files:
        raise NotFound(f"{run.id} has no recorded rollouts (trace.rollouts_per_step, or no step is done yet)")
    wanted = files[-1][1] if step is None else step
    found = [file for file in files if file[1] == wanted]
    if not found:
        known = sorted({at for _, at, _ in files})
        raise NotFound(f"{run.id} has no recorded rollouts of step {step}; it has {known[0]} to {known[-1]}")
    return found[-1]


def rollouts(store: Store, run: Run, step: int | None = None, attempt: int | None = None) -> Iterator[Row]:
    """The records (protocol.TraceRollout as plain objects) of one step, by default the newest; raises NotFound."""
    number, at, path = step_file(run, step, attempt)
    return step_records(store, run.num, number, at, path)


def pick(store: Store, run: Run, place: Place) -> Row:
    """The record of one rollout; raises NotFound."""
    for record in rollouts(store, run, place.step, place.attempt):
        if string(record.get("rollout_id")) == place.rollout_id:
            return record
    raise NotFound(f"{run.id} has no rollout {place.rollout_id!r} at step {place.step}")


def named(store: Store, run: Run, rollout_id: str, step: int | None = None) -> Rollout:
    """One rollout by its id, of a step, by default of the newest that has it; raises NotFound."""
    for at in [step] if step is not None else reversed(steps(run)):
        for record in rollouts(store, run, at):
            if string(record.get("rollout_id")) == rollout_id:
                return parse(record, settings_of(run))
    raise NotFound(f"{run.id} has no recorded rollout {rollout_id!r}; `molt-tui trace {run.id}` lists them")


def group_of(store: Store, run: Run, place: Place, config: Mapping[str, Any]) -> list[Rollout]:
    """The recorded rollouts of the group that a rollout belongs to; raises NotFound."""
    group = pick(store, run, place).get("group_id")
    records = rollouts(store, run, place.step, place.attempt)
    return [parse(record, config) for record in records if record.get("group_id") == group]


def summaries(records: Iterable[Row]) -> list[Row]:
    """Figures of records that can be placed, as the rows of the database have them."""
    return [row for record in records if (row := rollout_row(record)) is not None]


def ordered(rows: Iterable[Row], sort: str, *, reverse: bool = False) -> list[Row]:
    """Rows by one of ORDERS; what was not measured comes last either way."""
    if sort == "recorded":
        return list(rows)[:: -1 if reverse else 1]
    values = [(_KEYS[sort](row), row) for row in rows]
    known = [(value, row) for value, row in values if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=ORDERS[sort] != reverse)
    return [row for _, row in known] + [row for value, row in values if value is None]


def _share(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row[name] is None else row[name] / max(row["sampled"], 1)


def _farthest(row: Row) -> float | None:
    return None if row["ratio_extreme"] is None else max(row["ratio_extreme"], 1.0 / row["ratio_extreme"])


_KEYS: dict[str, Callable[[Row], float | None]] = {
    "reward": lambda row: row["reward"], "length": lambda row: row["sampled"], "masked": _share("masked"), "ratio": _farthest,
    "experts": _share("mismatched"), "staleness": lambda row: row["staleness_max"],
}  # fmt: skip


def whole_run(store: Store, run: Run, sort: str, *, reverse: bool = False, limit: int = 1000) -> list[Row]:
    """Rollouts of every step of a run by one of ORDERS, at most `limit`, what was not measured last."""
    expression, way = _EXPRESSIONS[sort], "DESC" if ORDERS[sort] != reverse else "ASC"
    sql = (
        f"SELECT r.id AS run, {_COLUMNS}, min(o.prompt_chars, {PROMPT_CHARS}) AS prompt_chars,"
        f" substr(o.text, max(1, o.prompt_chars - {PROMPT_CHARS - 1}), {SHOWN_CHARS}) AS text"
        f" {_NEWEST} ORDER BY ({expression}) IS NULL, {expression} {way}, o.step, o.id LIMIT ?"
    )
    return [dict(row) for row in store.rows(sql, (run.num, run.num, limit))]


def ingest(store: Store, run: Run) -> int:
    """Bring the database up to date with the run's recorded rollouts; returns how many were read."""
    return ingest_rollouts(store, run.num, run.directory)


def find(store: Store, text: str, run: Run, *, limit: int = 1000) -> list[Row]:
    """Rollouts whose text contains `text` (ASCII letters match in either case), newest step first, with an excerpt around it.

    It reads every text once: 10,000 rollouts take a fraction of a second.
    """
    pattern = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    at = "instr(lower(o.text), lower(?))"
    sql = (
        f"SELECT r.id AS run, {_COLUMNS}, 0 AS prompt_chars, substr(o.text, max(1, {at} - 60), {SHOWN_CHARS}) AS excerpt"
        f" {_NEWEST} AND o.text LIKE ? ESCAPE '\\' ORDER BY o.step DESC, o.id LIMIT ?"
    )
    return [dict(row) for row in store.rows(sql, (text, run.num, run.num, f"%{pattern}%", limit))]
