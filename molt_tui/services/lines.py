"""The lines of all runs, kept up to date at the cost of what changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from molt_tui.lines import RunLine
from molt_tui.services import runs
from molt_tui.services.runs import Observed, Run
from molt_tui.store.database import Store
from molt_tui.text import clean
from molt_tui.verdict import Verdict

Judge = Callable[[Run, Observed, float], Verdict | None]


def make_line(run: Run, seen: Observed, note: str, now: float, verdict: Verdict | None) -> RunLine:
    """`seen`: what this reader observed of the run; `now` on its clock."""
    last = seen.beat if seen.beat is not None and not run.final else run.updated
    return RunLine(
        id=clean(run.id), name=clean(run.name), state=clean(run.state), detail=clean(run.detail or run.last_error or ""),
        step=run.step, max_steps=run.max_steps, version=run.version, attempts=run.attempts, reward=run.reward,
        age_s=None if last is None else max(0.0, now - last), created=run.created or 0.0,
        group=clean(run.group) if run.group else None, tags=tuple(clean(t) for t in run.tags), recipe=clean(run.recipe or ""),
        job_id=clean(run.job_id) if run.job_id else None, host=clean(run.host or ""), last_checkpoint=run.last_checkpoint,
        note=clean(note), verdict=verdict, as_of=now,
    )  # fmt: skip


class RunLines:
    """The lines of every run in one store. A run without news keeps its very line object, so that a caller sees by
    identity what changed."""

    def __init__(self, judge: Judge | None = None) -> None:
        self._judge = judge
        self._news: runs.News | None = None
        self._lines: dict[int, RunLine] = {}
        self._active: dict[int, tuple[Run, Observed, str]] = {}
        self._ordered: list[RunLine] = []

    def refresh(self, store: Store, now: float | None = None) -> list[RunLine]:
        """Newest run first. Verdicts of active runs follow the clock; everything else follows the database."""
        now = time.time() if now is None else now
        before, news = self._news, runs.news(store, self._news)
        other = before is not None and before.of != news.of
        if other:
            self._lines.clear()
            self._active.clear()
        self._news = replace(news, runs=[], gone=[])
        for num in news.gone:
            self._lines.pop(num, None)
            self._active.pop(num, None)
        touched = self._learn(news, now) + self._follow_clock(now)
        if touched or news.gone or other:
            self._ordered = sorted(self._lines.values(), key=lambda line: (line.created, line.id), reverse=True)
        return list(self._ordered)

    def _learn(self, news: runs.News, now: float) -> int:
        for run, seen, note in news.runs:
            self._lines[run.num] = make_line(run, seen, note, now, self._verdict(run, seen, now))
            if run.final:
                self._active.pop(run.num, None)
            else:
                self._active[run.num] = (run, seen, note)
        return len(news.runs)

    def _follow_clock(self, now: float) -> int:
        """A beat that does not come is news as well."""
        changed = 0
        for num, (run, seen, note) in self._active.items():
            verdict = self._verdict(run, seen, now)
            if verdict != self._lines[num].verdict:
                self._lines[num] = make_line(run, seen, note, now, verdict)
                changed += 1
        return changed

    def _verdict(self, run: Run, seen: Observed, now: float) -> Verdict | None:
        return None if run.final or self._judge is None else self._judge(run, seen, now)
