"""Curves in braille: two by four dots per character. Pure functions over points; NaN and infinities leave a gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

Point = tuple[float, float]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass
class Column:
    """What one pixel column holds: the span of its values, the first and the last, and whether a gap precedes it."""

    low: float
    high: float
    first: float
    last: float
    gap: bool


@dataclass
class Canvas:
    """`width` x `height` characters; each remembers the last series that drew on it."""

    width: int
    height: int
    dots: list[list[int]] = field(init=False)
    owner: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.dots = [[0] * self.width for _ in range(self.height)]
        self.owner = [[-1] * self.width for _ in range(self.height)]

    def dot(self, x: int, y: int, series: int) -> None:
        """Set the pixel at column x, row y from the top; outside is ignored."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            self.dots[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
            self.owner[y // 4][x // 2] = series

    def vertical(self, x: int, y0: int, y1: int, series: int) -> None:
        for y in range(min(y0, y1), max(y0, y1) + 1):
            self.dot(x, y, series)

    def rows(self) -> list[list[tuple[str, int]]]:
        """Each row as runs of (text, series); series -1 is empty space."""
        result = []
        for dots, owners in zip(self.dots, self.owner):
            runs: list[tuple[str, int]] = []
            for bits, series in zip(dots, owners):
                char = chr(0x2800 + bits) if bits else " "
                if runs and runs[-1][1] == series:
                    runs[-1] = (runs[-1][0] + char, series)
                else:
                    runs.append((char, series))
            result.append(runs)
        return result


def bounds(values: Sequence[float]) -> tuple[float, float] | None:
    """Smallest and largest finite value; None when there is none."""
    finite = [v for v in values if isfinite(v)]
    return (min(finite), max(finite)) if finite else None


def unit(value: float, low: float, high: float) -> float:
    """Position of value in [low, high] as 0..1, safe for the largest floats; 0.5 when the range is empty."""
    scale = max(abs(low), abs(high)) or 1.0
    span = high / scale - low / scale
    return 0.5 if span == 0 else (value / scale - low / scale) / span


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most about `limit` points that draw the same picture: the extremes of every bucket and one mark per gap."""
    if len(points) <= limit or limit < 4:
        return list(points)
    size = -(-2 * len(points) // limit)
    return [p for start in range(0, len(points), size) for p in essence(points[start : start + size])]


def essence(bucket: Sequence[Point]) -> list[Point]:
    """The smallest and the largest point of a bucket and one that cannot be drawn, in order."""
    finite = [p for p in bucket if isfinite(p[1])]
    chosen = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])} if finite else set()
    gap = next((p for p in bucket if not isfinite(p[1])), None)
    return sorted([*chosen, *([gap] if gap is not None else [])], key=lambda p: p[0])


def columns(points: Sequence[Point], x_low: float, x_high: float, pixels: int) -> dict[int, Column]:
    """Downsample to one entry per pixel column; the extremes of a column survive, so that spikes stay visible."""
    result: dict[int, Column] = {}
    gap = True
    for x, y in points:
        if not isfinite(y) or not isfinite(x):
            gap = True
            continue
        place = round(unit(x, x_low, x_high) * (pixels - 1)) if x_high > x_low else pixels // 2
        column = result.get(place)
        if column is None:
            result[place] = Column(y, y, y, y, gap)
        else:
            column.low, column.high, column.last = min(column.low, y), max(column.high, y), y
        gap = False
    return result


def draw(canvas: Canvas, points: Sequence[Point], x_range: Point, y_range: Point, series: int) -> None:
    """Draw one curve, connecting neighbours unless a gap lies between them."""
    pixels_x, pixels_y = 2 * canvas.width, 4 * canvas.height

    def row(value: float) -> int:
        return round((1 - unit(value, *y_range)) * (pixels_y - 1))

    before: tuple[int, int] | None = None
    for x, column in sorted(columns(points, *x_range, pixels_x).items()):
        if before is not None and not column.gap:
            x0, y0 = before
            y1 = row(column.first)
            steps = x - x0
            for i in range(1, steps + 1):
                here, previous = y0 + (y1 - y0) * i / steps, y0 + (y1 - y0) * (i - 1) / steps
                start = round(previous) + (0 if round(here) == round(previous) else (1 if here > previous else -1))
                canvas.vertical(x0 + i, start, round(here), series)
        canvas.vertical(x, row(column.low), row(column.high), series)
        before = (x, row(column.last))


def plot(curves: Sequence[Sequence[Point]], width: int, height: int) -> tuple[Canvas, Point, Point] | None:
    """All curves on one canvas with shared axes; returns (canvas, x range, y range), None without a finite point."""
    points = [p for curve in curves for p in curve if isfinite(p[0]) and isfinite(p[1])]
    if not points or width < 1 or height < 1:
        return None
    x_range = bounds([x for x, _ in points])
    y_range = bounds([y for _, y in points])
    assert x_range is not None and y_range is not None
    canvas = Canvas(width, height)
    for series, curve in enumerate(curves):
        draw(canvas, curve, x_range, y_range, series)
    return canvas, x_range, y_range
