"""Curves of runs that live: only what was appended since the last look is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from molt_tui.services import metrics
from molt_tui.services.runs import Run
from molt_tui.store.database import Store

_STEP = attrgetter("step")


@dataclass
class _Known:
    attempt: int | None = None
    points: list[metrics.Point] = field(default_factory=list)


class Growing:
    """Keeps curves by run, metric and length. For one thread; `keep` drops the others."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int | None], _Known] = {}

    def keep(self, run_ids: Container[str]) -> None:
        """Drop the curves of all other runs."""
        self._known = {place: known for place, known in self._known.items() if place[0] in run_ids}

    def points(self, store: Store, run: Run, key: str, last: int | None = None) -> tuple[Sequence[metrics.Point], int]:
        """(points in order of step, index of the first one that may differ from the last answer).

        Read again from the newest step of the newest attempt on, which supersedes the steps it repeats.
        """
        known = self._known.setdefault((run.id, key, last), _Known())
        ours = [p.step for p in known.points[-1:] if p.attempt == run.attempt]
        if known.attempt != run.attempt or not ours:
            known.attempt, known.points = run.attempt, metrics.series(store, run, key, last=last)
            return known.points, 0
        place = bisect_left(known.points, ours[0], key=_STEP)
        known.points[place:] = metrics.series(store, run, key, since=ours[0])
        if last is not None and len(known.points) > last:
            del known.points[:-last]
            return known.points, 0
        return known.points, place
