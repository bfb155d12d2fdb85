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
from molt_tui.tui.widgets.chart import AS_REPORTED, AXIS, ChartLook, framed, nothing, shaped, x_axis

LETTERS = "ABCDEFGH"
COLOURS = ("$accent", "$warning", "$success", "$error", "$primary", "$foreground", "$secondary", "$text-accent")
LETTER_EVERY = 18  # cells between two letters of a curve


Lines = tuple[list[Point], list[Point], list[Point]]  # mean, lower and upper edge of a band
Letters = dict[tuple[int, int], str]  # by (column, row)


def lines_of(curve: Sequence[BandPoint], look: ChartLook) -> Lines:
    """The mean of a curve and the edges of its band as they are drawn; a curve without spread has no edges."""

    def edge(sign: int) -> list[Point]:
        return shaped([(p.x, p.mean + sign * p.sd) for p in curve if p.sd is not None], look)

    return shaped([(p.x, p.mean) for p in curve], look), edge(-1), edge(1)


def paint(curves: Sequence[Sequence[BandPoint]], width: int, height: int,
          look: ChartLook = AS_REPORTED) -> tuple[Canvas, Letters, Point, Point] | None:  # fmt: skip
    """(canvas, letters that stand on it, x range, y range), None without a finite point. Bands lie below the lines."""
    shown = [lines_of(curve, look) for curve in curves]
    points = [(x, y) for lines in shown for line in lines for x, y in line if isfinite(x) and isfinite(y)]
    x_range, y_range = bounds([x for x, _ in points]), bounds([y for _, y in points])
    if x_range is None or y_range is None or width < 1 or height < 1:
        return None
    canvas, ranges = Canvas(width, height), (x_range, y_range)
    for series, (_, *edges) in enumerate(shown):
        for edge in edges:
            _dots(canvas, edge, ranges, series)
    letters: Letters = {}
    for series, (line, *_) in enumerate(shown):
        draw(canvas, line, *ranges, series)
        _put_letters(letters, canvas, line, ranges, series, len(curves))
    return canvas, letters, x_range, y_range


def _row(value: float, y_range: Point, pixels: int) -> int:
    return round((1 - unit(value, *y_range)) * (pixels - 1))


def _dots(canvas: Canvas, edge: Sequence[Point], ranges: tuple[Point, Point], series: int) -> None:
    """The edge of a band: one pixel in every second column that has a value."""
    (x_range, y_range), pixels = ranges, 4 * canvas.height
    for x, column in columns(edge, *x_range, 2 * canvas.width).items():
        if x % 2 == series % 2:
            canvas.dot(x, _row(column.last, y_range, pixels), series)


def _put_letters(letters: Letters, canvas: Canvas, line: Sequence[Point], ranges: tuple[Point, Point],
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


def overlay(curves: Sequence[Sequence[BandPoint]], width: int, height: int, unit_of_x: str,
            look: ChartLook = AS_REPORTED) -> list[Content]:  # fmt: skip
    """The lines to show: values on the left, the range of x below, the cursor where the look has its mark."""
    drawn = paint(curves, width - AXIS, height - 1, look)
    if drawn is None:
        words = nothing([p.mean for curve in curves for p in curve]) or "nothing to draw yet"
        return [Content.styled(words, "$quiet").truncate(width, ellipsis=True)]
    canvas, letters, x_range, y_range = drawn
    rows = [_cells(canvas, letters, y) for y in range(canvas.height)]
    below = x_axis(x_range, look.mark, width, unit_of_x, lambda x: axis_value(x, unit_of_x))
    return [*framed(rows, x_range, y_range, look), below]


def _cells(canvas: Canvas, letters: Letters, y: int) -> list[tuple[str, str]]:
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
    """A place on the x axis: steps whole, tokens with a unit, time as a duration in two units."""
    if unit_of_x == "time":
        for size, big, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
            if size <= value < 1e9:
                return f"{int(value // size)} {big} {int(value % size // part):02} {small}"
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
        self.by, self.look = "step", AS_REPORTED

    def show(self, curves: Sequence[Sequence[BandPoint]], by: str, look: ChartLook) -> None:
        if curves is not self.curves or (by, look) != (self.by, self.look):
            self.curves, self.by, self.look = curves, by, look
            self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if width <= AXIS + 4 or height < 2:
            return Content("")
        return Content("\n").join(overlay(self.curves, width, height, self.by, self.look)[:height])
