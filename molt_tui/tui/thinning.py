"""Curves of any length, thinned to the screen; of a curve that grows only the end is thinned again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from molt_tui.services import metrics
from molt_tui.tui.widgets.braille import Point, essence


class ThinCurve:
    """At most about `limit` points that draw the same picture. Points must be given whole each time."""

    def __init__(self, limit: int) -> None:
        self.limit, self._size = limit, 0
        self._points: list[Point] = []
        self._buckets: list[list[Point]] = []

    def update(self, points: Sequence[metrics.Point], changed: int) -> list[Point]:
        """The thinned curve; `changed` is the index of the first point that may differ from the last call."""
        self._points[changed:] = [(float(p.step), p.value if isinstance(p.value, float) else math.nan) for p in points[changed:]]
        if len(self._points) <= self.limit or self.limit < 4:
            return list(self._points)
        size = -(-2 * len(self._points) // self.limit)
        if size != self._size:
            self._size, self._buckets = size, []
        del self._buckets[changed // size :]
        for start in range(len(self._buckets) * size, len(self._points), size):
            self._buckets.append(essence(self._points[start : start + size]))
        return [point for bucket in self._buckets for point in bucket]
