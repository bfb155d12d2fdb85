"""Mean and spread over the runs of a group. Pure; safe for NaN, infinities and the largest floats."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt

Point = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Mean of `n` finite values and their sample standard deviation (None for fewer than two); `lost` were not finite."""

    mean: float
    sd: float | None
    n: int
    lost: int = 0


@dataclass(frozen=True)
class BandPoint:
    """A group at one x: mean (NaN when no run has a finite value there), sample standard deviation, runs counted."""

    x: float
    mean: float
    sd: float | None
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """None when there is no value at all; the mean is NaN when none is finite."""
    everything = list(values)
    finite = [v for v in everything if isfinite(v)]
    lost = len(everything) - len(finite)
    if not finite:
        return Spread(float("nan"), None, 0, lost) if lost else None
    scale = max(map(abs, finite)) or 1.0
    count = len(finite)
    mean = fsum(v / scale for v in finite) / count
    sd = sqrt(fsum((v / scale - mean) ** 2 for v in finite) / (count - 1)) if count > 1 else None
    top = sys.float_info.max
    return Spread(max(-top, min(top, mean * scale)), None if sd is None else min(top, sd * scale), count, lost)


def band_by_step(curves: Sequence[Sequence[Point]]) -> list[BandPoint]:
    """Mean and spread at every step that any run has; runs without that step are not counted there."""
    at: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            at.setdefault(x, []).append(y)
    return [_point(x, at[x]) for x in sorted(at)]


def band_on_grid(curves: Sequence[Sequence[Point]], count: int) -> list[BandPoint]:
    """Mean and spread at `count` places of an axis on which the runs share no values: each run is interpolated within
    its own range, straight over values that are not finite. Every x must grow along a curve."""
    finite = [[p for p in curve if isfinite(p[0]) and isfinite(p[1])] for curve in curves]
    finite = [curve for curve in finite if curve]
    if not finite:
        return []
    low, high = min(c[0][0] for c in finite), max(c[-1][0] for c in finite)
    grid = [low + (high - low) * (i / (count - 1)) for i in range(count)] if high > low and count > 1 else [high]
    at: list[list[float]] = [[] for _ in grid]
    for curve in finite:
        for values, y in zip(at, interpolate(curve, grid)):
            if y is not None:
                values.append(y)
    return [_point(x, values) for x, values in zip(grid, at) if values]


def thin_band(points: Sequence[BandPoint], limit: int) -> list[BandPoint]:
    """At most about `limit` points that draw the same picture: the extremes of every bucket and one mark per gap."""
    size = -(-2 * len(points) // max(limit, 4))
    if len(points) <= limit:
        return list(points)
    kept: list[BandPoint] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        finite = [p for p in bucket if isfinite(p.mean)]
        chosen = {id(p): p for p in (min(finite, key=lambda p: p.mean), max(finite, key=lambda p: p.mean))} if finite else {}
        gap = next((p for p in bucket if not isfinite(p.mean)), None)
        kept += sorted([*chosen.values(), *([gap] if gap is not None else [])], key=lambda p: p.x)
    return kept


def interpolate(curve: Sequence[Point], grid: Sequence[float]) -> list[float | None]:
    """The curve at each place of a growing grid; None outside its range."""
    found: list[float | None] = []
    at = 0
    for x in grid:
        while at + 1 < len(curve) and curve[at + 1][0] <= x:
            at += 1
        (x0, y0), (x1, y1) = curve[at], curve[min(at + 1, len(curve) - 1)]
        if x < x0 or x > curve[-1][0]:
            found.append(None)
        elif x1 <= x0:
            found.append(y0)
        else:
            share = (x - x0) / (x1 - x0)
            found.append(y0 * (1 - share) + y1 * share)
    return found


def placed(points: Iterable[tuple[int, float]], places: Mapping[int, float]) -> list[Point]:
    """Points (step, value) on another axis: `places` gives each step's x; steps without one are left out."""
    return [(places[step], value) for step, value in points if step in places]


def running_total(amounts: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Step -> sum up to and including it. What is negative or not finite adds nothing."""
    total, found = 0.0, {}
    for step, amount in amounts:
        total += amount if isfinite(amount) and amount > 0 else 0.0
        found[step] = total
    return found


def _point(x: float, values: Sequence[float]) -> BandPoint:
    found = spread(values)
    assert found is not None
    return BandPoint(x, found.mean, found.sd, found.n)
