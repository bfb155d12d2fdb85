"""Drawing curves as text: axes, a mark at one step, logarithmic values, smoothing. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from textual.content import Content

from molt_tui.tui import format
from molt_tui.tui.widgets.braille import Point, plot, unit

AXIS = 8
SERIES = ("$accent", "$warning", "$success")
SMOOTHINGS = (1, 5, 20)
CURSOR = "│"

Line = Content | str
Cells = tuple[str, str]  # (text, style)


@dataclass(frozen=True)
class ChartLook:
    """`log`: values on a logarithmic axis; `smooth`: mean of so many points; `mark`: the step to point at."""

    log: bool = False
    smooth: int = 1
    mark: float | None = None

    def toggled(self) -> ChartLook:
        return replace(self, log=not self.log)

    def smoother(self) -> ChartLook:
        place = SMOOTHINGS.index(self.smooth) + 1
        return replace(self, smooth=SMOOTHINGS[place % len(SMOOTHINGS)])

    @property
    def words(self) -> str:
        """How the curve is not as it was reported; empty when it is."""
        parts = ["log"] if self.log else []
        parts += [f"mean of {self.smooth}"] if self.smooth > 1 else []
        return ", ".join(parts)


AS_REPORTED = ChartLook()


def smoothed(points: Sequence[Point], count: int) -> list[Point]:
    """The mean of each point and those before it, `count` in all; NaN and infinities stay, and are left out of means."""
    if count <= 1:
        return list(points)
    result, window = [], []
    for x, y in points:
        if math.isfinite(y):
            window = [*window[-count + 1 :], y / count]
            y = sum(window) / len(window) * count
        result.append((x, y))
    return result


def logarithmic(points: Sequence[Point]) -> list[Point]:
    """log10 of each value; what has none becomes a gap."""
    return [(x, math.log10(y) if 0 < y < math.inf else math.nan) for x, y in points]


def shaped(points: Sequence[Point], look: ChartLook) -> list[Point]:
    found = smoothed(points, look.smooth)
    return logarithmic(found) if look.log else found


def chart(curves: Sequence[Sequence[Point]], width: int, height: int, look: ChartLook = AS_REPORTED) -> list[Line]:
    """Curves with the range of values on the left and, where there is room, the range of steps below."""
    if width <= AXIS + 4 or height < 1:
        return []
    with_steps = height >= 6 and width >= AXIS + 20
    drawn = plot([shaped(curve, look) for curve in curves], width - AXIS, height - with_steps)
    if drawn is None:
        return [Content.styled(nothing([y for curve in curves for _, y in curve]) or format.ABSENT, "$quiet")]
    canvas, x_range, y_range = drawn
    rows = [[(text, SERIES[series] if series >= 0 else "") for text, series in runs] for runs in canvas.rows()]
    lines: list[Line] = [*framed(rows, x_range, y_range, look)]
    if with_steps:
        lines.append(x_axis(x_range, look.mark, width, "step", lambda x: f"{x:.0f}"))
    return lines


def nothing(values: Sequence[float]) -> str:
    """Why curves without a point to draw are not drawn, when it is the logarithm."""
    return "no value above 0 to draw (L: linear)" if any(map(math.isfinite, values)) else ""


def framed(rows: Sequence[Sequence[Cells]], x_range: Point, y_range: Point, look: ChartLook) -> list[Content]:
    """Rows of (text, style) with the range of values on the left and the mark of the look in its column."""
    width = sum(len(text) for text, _ in rows[0]) if rows else 0
    column, labels = column_of(look.mark, x_range, width), {len(rows) - 1: y_range[0], 0: y_range[1]}
    lines = []
    for i, row in enumerate(rows):
        label = _axis_label(labels[i], look.log) if i in labels else ""
        lines.append(Content.assemble((label.rjust(AXIS - 1) + "▏", "$quiet"), *_marked(row, column)))
    return lines


def column_of(mark: float | None, x_range: Point, width: int) -> int | None:
    """The cell of a plot `width` wide in which a place of the x axis lies; None outside."""
    if mark is None or not x_range[0] <= mark <= x_range[1]:
        return None
    return round(unit(mark, *x_range) * (2 * width - 1)) // 2


def _marked(row: Sequence[Cells], column: int | None) -> list[Cells]:
    """One row's cells with the mark in its column; a curve shows through it."""
    cells: list[Cells] = []
    start = 0
    for text, style in row:
        if column is not None and start <= column < start + len(text):
            here = column - start
            mark = (CURSOR, "$foreground") if text[here] == " " else (text[here], "$foreground")
            cells += [(text[:here], style), mark, (text[here + 1 :], style)]
        else:
            cells.append((text, style))
        start += len(text)
    return cells


def x_axis(x_range: Point, mark: float | None, width: int, name: str, words: Callable[[float], str]) -> Content:
    """The range of the x axis in words, and the marked place below its column."""
    (x0, x1), column = x_range, column_of(mark, x_range, width - AXIS)
    left, right = f"{name} {words(x0)}", words(x1)
    if column is None or mark is None:
        gap = max(1, width - AXIS - len(left) - len(right))
        return Content.styled(f"{'':{AXIS}}{left}{'':{gap}}{right}", "$quiet").truncate(width, ellipsis=True)
    word = words(mark)
    start = min(max(0, column - len(word) // 2), max(0, width - AXIS - len(word)))
    left = left if len(left) < start else ""
    right = right if start + len(word) < width - AXIS - len(right) else ""
    before, after = f"{'':{AXIS}}{left:{start}}", right.rjust(width - AXIS - start - len(word))
    return Content.assemble((before, "$quiet"), (word, "bold"), (after, "$quiet")).truncate(width, ellipsis=True)


def _axis_label(value: float, log: bool) -> str:
    if log:
        value = 10**value if value < 300 else math.inf
    text = format.number(value)
    return text if len(text) < AXIS else format.number(value, 2)


def value_at(points: Sequence[Point], step: float) -> float | None:
    """The value at a step: of the last point up to it; None before the first."""
    found = [y for x, y in points if x <= step]
    return found[-1] if found else None


def smoothed_at(points: Sequence[Point], look: ChartLook, place: float) -> float | None:
    """The smoothed value at a place of the x axis, not its logarithm."""
    return value_at(smoothed(points, look.smooth), place)


def lost_points(points: Sequence[Point]) -> str:
    """Which points of a curve cannot be drawn, in words: "  NaN at step 212", "  NaN since step 60"."""
    bad = [(x, y) for x, y in points if not math.isfinite(y)]
    if not bad:
        return ""
    word = "NaN" if any(math.isnan(y) for _, y in bad) else "inf"
    if len(bad) == 1:
        return f"  {word} at step {bad[0][0]:.0f}"
    if all(not math.isfinite(y) for x, y in points if x >= bad[0][0]):
        return f"  {word} since step {bad[0][0]:.0f}"
    return f"  {word} ×{len(bad)}, last at step {bad[-1][0]:.0f}"
