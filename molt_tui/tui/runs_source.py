"""The part of StoreSource behind the Runs and Compare screens: lines, curves of the rows in view, tags, notes, deletion."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from molt_tui.bands import thin_band
from molt_tui.comparison import Comparison
from molt_tui.errors import MoltError
from molt_tui.services import delete, metrics, notes, runs
from molt_tui.services.compare import Comparer
from molt_tui.services.comparison_export import as_markdown, save
from molt_tui.services.lines import RunLine, RunLines
from molt_tui.text import clean
from molt_tui.tui.read_only import changes
from molt_tui.tui.source import NoteLine, Trend

if TYPE_CHECKING:
    from molt_tui.store.database import Store
    from molt_tui.verdict import Verdict

TREND_POINTS = 20
TRENDS_KEPT = 500
DRAWN_POINTS = 800  # points of a compared curve that reach the screen
PATROL = 16  # a run that ended long ago is looked at in one of so many passes


class RunsSource:
    """Mixin; the class beside it gives `store` (one connection per thread), `read_only` and how an active run fares."""

    if TYPE_CHECKING:
        read_only: bool

        @property
        def store(self) -> Store: ...

        def fares(self, run: runs.Run, seen: runs.Observed, now: float) -> Verdict: ...

    def __init__(self) -> None:
        self._lines, self._lock = RunLines(self.fares), threading.Lock()
        self._trends: dict[str, tuple[RunLine, Trend]] = {}
        self._known: dict[str, RunLine] = {}
        self._comparer, self._comparing = Comparer(), threading.Lock()
        self._thinned: tuple[Comparison, Comparison] | None = None
        self._passes = 0

    def ingest(self) -> None:
        """One pass over the run directories: all that may be at work, and a share of the others."""
        self._passes += 1
        turn = self._passes % PATROL
        runs.refresh(self.store, skip=lambda path: hash(path) % PATROL != turn)

    def runs(self) -> Sequence[RunLine]:
        with self._lock:
            found = self._lines.refresh(self.store)
            self._known = {line.id: line for line in found}
        return found

    def trends(self, run_ids: Sequence[str]) -> Mapping[str, Trend]:
        return {run_id: self._trend(self._known[run_id]) for run_id in run_ids if run_id in self._known}

    def _trend(self, line: RunLine) -> Trend:
        """Read again only when the run's line changed."""
        known = self._trends.get(line.id)
        if known is None or known[0] is not line:
            points = metrics.series(self.store, runs.get_run(self.store, line.id), "reward/mean", last=TREND_POINTS)
            trend = tuple((float(p.step), p.value) for p in points if isinstance(p.value, float))
            known = self._trends[line.id] = (line, trend)
            if len(self._trends) > TRENDS_KEPT:
                del self._trends[next(iter(self._trends))]
        return known[1]

    def notes(self, run_id: str) -> Sequence[NoteLine]:
        found = runs.notes(self.store, runs.get_run(self.store, run_id))
        return [NoteLine(n["t"], clean(n["who"] or "?"), n["action"], clean(n["text"])) for n in found]

    @changes
    def retag(self, run_ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> str:
        found = [runs.get_run(self.store, run_id) for run_id in run_ids]
        count = notes.retag(self.store, found, add, remove)
        words = [f"+{clean(tag)}" for tag in add] + [f"-{clean(tag)}" for tag in remove]
        return f"tags of {counted(count)} changed: {' '.join(words)}" if count else "no tag changed"

    @changes
    def note(self, run_ids: Sequence[str], text: str) -> str:
        for run_id in run_ids:
            notes.add(self.store, runs.get_run(self.store, run_id), "note", text)
        return f"note added to {counted(len(run_ids))}"

    @changes
    def delete(self, run_ids: Sequence[str]) -> str:
        done, problems = delete.delete_all(self.store, run_ids)
        said = clean(f"deleted {some([run.name for run in done])}") if done else ""
        if problems:
            raise MoltError(clean(f"{some(problems, '; ', 2)}{'; ' if said else ''}{said}"))
        return said

    def compare(self, refs: Sequence[str], metric: str, by: str) -> Comparison:
        """Curves are thinned to what a screen can show; one that did not change is the same object as before."""
        with self._comparing:
            whole = self._comparer.compare(self.store, refs, metric, by)
            if self._thinned is None or self._thinned[0] is not whole:
                curves = [thin_band(curve, DRAWN_POINTS) for curve in whole.curves]
                self._thinned = (whole, replace(whole, curves=curves))
            return self._thinned[1]

    def comparison_text(self, refs: Sequence[str], metric: str, by: str) -> str:
        return as_markdown(Comparer().compare(self.store, refs, metric, by))

    def export_comparison(self, refs: Sequence[str], metric: str, by: str, path: str) -> str:
        return f"written to {clean(save(Comparer().compare(self.store, refs, metric, by), path))}"


def some(texts: Sequence[str], between: str = ", ", limit: int = 3) -> str:
    """The first few, and how many more there are."""
    more = f"{between}and {len(texts) - limit} more" if len(texts) > limit else ""
    return between.join(texts[:limit]) + more


def counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
