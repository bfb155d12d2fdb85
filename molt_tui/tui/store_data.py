"""`DataSource` over the services: recorded rollouts and queries."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui.errors import MoltError, NotFound
from molt_tui.services import metrics, queries, runs, tables, traces
from molt_tui.store.query import QueryResult, run_query
from molt_tui.store.rows import string
from molt_tui.text import clean
from molt_tui.tokens import Place, Rollout
from molt_tui.tui.data_source import TokenPage, TraceLine, TraceView, Vocabulary, info_words, one_line

if TYPE_CHECKING:
    from molt_tui.store.database import Store
    from molt_tui.store.home import Home

MOST_LINES, PREVIEW_CHARS = 1000, 2000
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AS", "AND", "OR", "NOT",
    "IN", "LIKE", "IS NULL", "IS NOT NULL", "BETWEEN", "DISTINCT", "DESC", "CASE", "WHEN", "THEN", "ELSE", "END", "WITH",
    "count(*)", "avg(", "min(", "max(", "sum(", "round(", "coalesce(", "json_extract(", "substr(", "length(",
)  # fmt: skip
FIGURES = ("reward", "score", "advantage", "turns", "sampled", "masked", "mismatched", "ratio_mean", "ratio_extreme",
           "min_version", "max_version", "staleness_max")  # fmt: skip


def trace_line(row: Mapping[str, Any]) -> TraceLine:
    """A row of the store, or the figures of a record, as a line of the screen."""
    text, start = row.get("text") or "", row["prompt_chars"] or 0
    prompt, response = text[:start][-PREVIEW_CHARS:], text[start : start + PREVIEW_CHARS]
    if row.get("excerpt") is not None:
        prompt, response = "", row["excerpt"][:PREVIEW_CHARS]
    info = json.loads(row["info"]) if row["info"] else {}
    return TraceLine(
        Place(row["attempt"], row["step"], row["rollout_id"]), clean(row["rollout_id"]), clean(row["prompt_id"] or ""),
        clean(row["group_id"] or ""), {name: row[name] for name in FIGURES}, one_line(prompt), one_line(response),
        one_line((row["label"] or "")[:PREVIEW_CHARS]), info_words(info)[:200], bool(row["truncated"]),
    )  # fmt: skip


class StoreData:
    """Mixin of StoreSource; needs its `home` and this thread's `store`."""

    home: Home

    if TYPE_CHECKING:

        @property
        def store(self) -> Store: ...

    _last_step: tuple[tuple, list[dict[str, Any]]] = ((), [])

    def traces(self, run_id: str, step: int | None, sort: str, reverse: bool) -> TraceView:
        run = runs.get_run(self.store, run_id)
        if not traces.steps(run):
            return TraceView(run.id, clean(run.name), (), None, ())
        at, rows = self._figures(run, step)
        lines = [trace_line(row) for row in traces.ordered(rows, sort, reverse=reverse)]
        return TraceView(run.id, clean(run.name), traces.steps(run), at, lines)

    def _figures(self, run: runs.Run, step: int | None, attempt: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """The step and the figures of its rollouts; those of the last file are kept, since the screens ask again and again."""
        number, at, path = traces.step_file(run, step, attempt)
        mark = (str(path), path.stat().st_size)
        known, rows = self._last_step
        if known != mark:
            rows = traces.summaries(traces.rollouts(self.store, run, at, number))
            self._last_step = (mark, rows)
        return at, rows

    def all_traces(self, run_id: str, text: str, sort: str, reverse: bool) -> TraceView:
        run = runs.get_run(self.store, run_id)
        traces.ingest(self.store, run)
        if text:
            rows = traces.ordered(traces.find(self.store, text, run, limit=MOST_LINES), sort, reverse=reverse)
        else:
            rows = traces.whole_run(self.store, run, sort, reverse=reverse, limit=MOST_LINES)
        lines = [trace_line(row) for row in rows]
        return TraceView(run.id, clean(run.name), traces.steps(run), None, lines, limited=len(lines) >= MOST_LINES)

    def rollout(self, run_id: str, place: Place) -> TokenPage:
        run = runs.get_run(self.store, run_id)
        found = traces.pick(self.store, run, place)
        group = string(found.get("group_id"))
        rewards = [r["reward"] for r in self._figures(run, place.step, place.attempt)[1] if r["group_id"] == group]
        layers = metrics.series(self.store, run, "routing/layer_mismatch", last=1)
        count = len(layers[0].value) if layers and isinstance(layers[0].value, list) else None
        return TokenPage(traces.parse(found, traces.settings_of(run)), rewards, count)

    def group(self, run_id: str, place: Place) -> Sequence[Rollout]:
        run = runs.get_run(self.store, run_id)
        return traces.group_of(self.store, run, place, traces.settings_of(run))

    def query(self, sql: str, cancelled: Callable[[], bool]) -> QueryResult:
        if "rollout" in sql.lower():  # the watch leaves recorded rollouts for whoever asks
            runs.refresh(self.store, rollouts=True)
        return run_query(self.home, sql, cancelled=cancelled)

    def vocabulary(self) -> Vocabulary:
        found = self.store.rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'")
        names = [row["name"] for row in found if "_fts_" not in row["name"]]
        columns = {row["name"] for name in names for row in self.store.rows("SELECT name FROM pragma_table_info(?)", (name,))}
        views = [n for n in names if not n.endswith(("_rows", "_fts")) and not n.startswith("_")]
        others = sorted({*names, *columns} - set(views), key=str.lower)
        keys = [row["name"] for row in self.store.rows("SELECT name FROM keys ORDER BY name")]
        ids = [row["id"] for row in self.store.rows("SELECT id FROM runs ORDER BY created DESC LIMIT 200")]
        return Vocabulary((*sorted(views), *others, *KEYWORDS), tuple(n for n in (*keys, *ids) if clean(n) == n),
                          queries.saved(self.home))  # fmt: skip

    def save_query(self, name: str, sql: str) -> None:
        queries.save(self.home, name, sql)

    def delete_query(self, name: str) -> None:
        queries.delete(self.home, name)

    def write_result(self, result: QueryResult, style: str, path: str) -> str:
        target = Path(os.path.abspath(os.path.expanduser(path))) if path else Path.cwd() / time.strftime(
            f"query-%Y%m%d-%H%M%S{tables.SUFFIXES[style]}")  # fmt: skip
        try:
            with tables.new_text_file(target) as file:
                tables.WRITERS[style](result.columns, result.rows, file)
        except FileExistsError as error:
            raise MoltError(f"{target} exists; give another name") from error
        except OSError as error:
            raise MoltError(f"cannot write {target}: {error.strerror}") from error
        return str(target)

    def find_place(self, row: Mapping[str, Any]) -> tuple[str, Place | None] | None:
        for column in ("run", "id", "run_id", "name"):
            value = row.get(column)
            if not isinstance(value, str) or not value:
                continue
            try:
                run = runs.find_run(self.store, value)
            except (NotFound, MoltError):
                continue
            identity, step = row.get("rollout_id"), row.get("step")
            place = None
            if isinstance(identity, str) and isinstance(step, int):
                place = Place(row.get("attempt") or traces.step_file(run, step)[0], step, identity)
            return run.id, place
        return None
