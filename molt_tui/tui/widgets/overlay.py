"""Curves of up to eight runs or groups on one canvas: each has a colour and a letter that stands on its line, so that
they can be told apart without colour; a group's mean has the edges of its band in dots. Pure functions and the widget."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from textual.content import Content
from textual.widget import Widget

from molt_tui.bands import BandPoint
from molt_tui.tui import format
from molt_tui.tui.widgets.braille import Canvas, Point, bounds, columns, draw, unit

LETTERS = "ABCDEFGH"
COLOURS = ("$accent", "$warning", "$success", "$error", "$primary", "$foreground", "$secondary", "$text-accent")
AXIS = 8
LETTER_EVERY = 18  # cells between two letters of a curve


def extent(curves: Sequence[Sequence[BandPoint]]) -> tuple[Point, Point] | None:
    """(x range, y range) of all means and bands; None when nothing can be drawn."""
    shown = [p for curve in curves for p in curve if isfinite(p.x) and isfinite(p.mean)]
    x_range = bounds([p.x for p in shown])
    y_range = bounds([y for p in shown for y in (p.mean, p.mean - (p.sd or 0.0), p.mean + (p.sd or 0.0))])
    return None if x_range is None or y_range is None else (x_range, y_range)


def paint(curves: Sequence[Sequence[BandPoint]], width: int, height: int) -> tuple[Canvas, dict[tuple[int, int], str]] | None:
    """The canvas and the letters that stand on it, by (column, row). Bands lie below the lines."""
    ranges = extent(curves)
    if ranges is None or width < 1 or height < 1:
        return None
    canvas = Canvas(width, height)
    for series, curve in enumerate(curves):
        for sign in (-1, 1):
            edge = [(p.x, p.mean + sign * p.sd) for p in curve if p.sd is not None]
            _dots(canvas, edge, ranges, series)
    letters: dict[tuple[int, int], str] = {}
    for series, curve in enumerate(curves):
        line = [(p.x, p.mean) for p in curve]
        draw(canvas, line, *ranges, series)
        _put_letters(letters, canvas, line, ranges, series, len(curves))
    return canvas, letters


def _row(value: float, y_range: Point, pixels: int) -> int:
    return round((1 - unit(value, *y_range)) * (pixels - 1))


def _dots(canvas: Canvas, edge: Sequence[Point], ranges: tuple[Point, Point], series: int) -> None:
    """The edge of a band: one pixel in every second column that has a value."""
    (x_range, y_range), pixels = ranges, 4 * canvas.height
    for x, column in columns(edge, *x_range, 2 * canvas.width).items():
        if x % 2 == series % 2:
            canvas.dot(x, _row(column.last, y_range, pixels), series)


def _put_letters(letters: dict[tuple[int, int], str], canvas: Canvas, line: Sequence[Point], ranges: tuple[Point, Point],
                 series: int, total: int) -> None:  # fmt: skip
    """A letter on the line every so many cells, begun at another place for each curve; never on another letter."""
    (x_range, y_range), pixels = ranges, 4 * canvas.height
    found = columns(line, *x_range, 2 * canvas.width)
    if not found:
        return
    cells = sorted({x // 2 for x in found})
    start = 1 + series * max(2, LETTER_EVERY // max(total, 1))
    wanted = [*range(start, canvas.width, LETTER_EVERY), cells[-1]]
    for target in wanted:
        near = min(cells, key=lambda cell: abs(cell - target))
        column = found.get(2 * near) or found[2 * near + 1]
        place = (near, _row(column.last, y_range, pixels) // 4)
        if abs(near - target) <= 3 and place not in letters:
            letters[place] = LETTERS[series]


def overlay(curves: Sequence[Sequence[BandPoint]], width: int, height: int, unit_of_x: str) -> list[Content]:
    """The lines to show: values on the left, the range of x below."""
    drawn = paint(curves, width - AXIS, height - 1)
    if drawn is None:
        return [Content.styled("nothing to draw yet", "$quiet")]
    canvas, letters = drawn
    (x0, x1), (y0, y1) = extent(curves) or ((0.0, 0.0), (0.0, 0.0))
    lines = []
    for y in range(canvas.height):
        value = y1 if y == 0 else y0 if y == canvas.height - 1 else None
        label = "" if value is None else format.number(value, 3 if len(format.number(value)) < AXIS else 2)
        lines.append(Content.assemble((label.rjust(AXIS - 1) + "▏", "$quiet"), *_cells(canvas, letters, y)))
    left, right = f"{unit_of_x} {axis_value(x0, unit_of_x)}", axis_value(x1, unit_of_x)
    gap = max(1, width - AXIS - len(left) - len(right))
    below = Content.styled(" " * AXIS + left + " " * gap + right, "$quiet")
    return [*lines, below.truncate(width, ellipsis=True)]


def _cells(canvas: Canvas, letters: dict[tuple[int, int], str], y: int) -> list[tuple[str, str]]:
    """One row of the canvas as (text, style), neighbours of one style together."""
    parts: list[tuple[str, str]] = []
    for x, (bits, owner) in enumerate(zip(canvas.dots[y], canvas.owner[y])):
        letter = letters.get((x, y))
        style = f"bold {COLOURS[LETTERS.index(letter)]}" if letter else COLOURS[owner] if owner >= 0 else ""
        text = letter or (chr(0x2800 + bits) if bits else " ")
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + text, style)
        else:
            parts.append((text, style))
    return parts


def axis_value(value: float, unit_of_x: str) -> str:
    """A place on the x axis: steps whole, tokens with a unit, time as a duration."""
    if unit_of_x == "time":
        return format.age(value)
    if unit_of_x == "tokens":
        for size, unit_name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= size:
                return f"{value / size:.3g} {unit_name}"
    return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.3g}"


class Overlay(Widget):
    """Draws the curves of a comparison; drawn again only when they change."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.curves: Sequence[Sequence[BandPoint]] = ()
        self.by = "step"

    def show(self, curves: Sequence[Sequence[BandPoint]], by: str) -> None:
        if curves is not self.curves or by != self.by:
            self.curves, self.by = curves, by
            self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if width <= AXIS + 4 or height < 2:
            return Content("")
        return Content("\n").join(overlay(self.curves, width, height, self.by)[:height])
