"""Panel of expert routing: mismatch per MoE layer over steps, as a heatmap."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from textual.content import Content

from molt_tui.tui import format
from molt_tui.tui.view import Layers, RunView
from molt_tui.tui.widgets.panel import Line, Panel
from molt_tui.tui.widgets.signals import labelled

LABEL, TALLEST = 6, 3
SHADES = ((0.0, " ", "$quiet"), (0.01, "░", "$accent"), (0.05, "▒", "$warning"), (0.20, "▓", "$warning"),
          (float("inf"), "█", "$error"))  # fmt: skip
NOT_CAPTURED, BROKEN = ("╌", "$quiet"), ("×", "$error")
LEGEND = "0   ░ <1 %   ▒ <5 %   ▓ <20 %   █ more   ╌ not captured"


def shade(share: float | None) -> tuple[str, str]:
    """(character, style) of a share; None was not captured."""
    if share is None:
        return NOT_CAPTURED
    if not isfinite(share):
        return BROKEN
    if share <= 0:
        return SHADES[0][1:]
    return next((char, style) for limit, char, style in SHADES[1:] if share < limit or limit == float("inf"))


def worst(shares: tuple[float, ...] | None, first: int, last: int) -> float | None:
    """What one cell shows of a step's layers: the broken one, else the largest; None when none was captured."""
    known = shares[first:last] if shares is not None else ()
    return next((v for v in known if not isfinite(v)), max(known, default=None))


def heatmap(layers: Sequence[Layers], width: int, height: int) -> list[Line]:
    """One line per layer (or per neighbouring layers, as their worst), one column per step, the newest steps that fit."""
    count = max((len(shares) for _, shares in layers if shares), default=0)
    if not count or width <= LABEL or height < 1:
        return []
    per_line = -(-count // height)
    repeat = min(TALLEST, height // count) if per_line == 1 else 1
    shown = layers[-(width - LABEL) :]
    lines: list[Line] = []
    for first in range(0, count, per_line):
        last = min(first + per_line, count)
        label = f"{first}" if per_line == 1 else f"{first}-{last - 1}"
        runs = _joined([shade(worst(shares, first, last)) for _, shares in shown])
        lines += [Content.assemble((part.rjust(LABEL - 1) + " ", "$quiet"), *runs) for part in [label, *[""] * (repeat - 1)]]
    return lines


def _joined(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one style as one run of text."""
    runs: list[tuple[str, str]] = []
    for char, style in cells:
        if runs and runs[-1][1] == style:
            runs[-1] = (runs[-1][0] + char, style)
        else:
            runs.append((char, style))
    return runs


class RoutingPanel(Panel):
    TITLE = "Routing by layer"
    HELP = (
        "Share of expert choices in which sampler and trainer differ, per MoE layer (lines) and step (columns), before replay.\n"
        "A blank is 0. Steps of which the sampler reported nothing are dashes: not captured is not 0."
    )

    def select(self, view: RunView) -> Any:
        now = view.pick("routing/layer_mismatch", "routing/coverage_frac", "routing/replayed_mismatch_frac")
        return tuple(view.layers if view.at is None else [cell for cell in view.layers if cell[0] <= view.at]), now

    def headline(self, data: Any) -> str:
        layers, now = data
        shares = layers[-1][1] if layers else None
        if not layers:
            return ""
        if shares is None:
            return "not captured at this step"
        worst_layer = max(range(len(shares)), key=lambda i: shares[i] if isfinite(shares[i]) else float("inf"))
        after = now.get("routing/replayed_mismatch_frac")
        replay = "no replay" if after is None else f"{format.share(after)} after replay"
        return f"worst layer {worst_layer} {format.share(shares[worst_layer])}, {replay}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        layers, now = data
        if not any(shares for _, shares in layers):
            return [labelled("layers", format.ABSENT)]
        below: list[Line] = []
        if height >= 4:
            first, last = layers[-min(len(layers), max(1, width - LABEL))][0], layers[-1][0]
            coverage = now.get("routing/coverage_frac")
            words = f"steps {first}-{last}   {LEGEND}" + ("" if coverage is None else f"   covered {format.share(coverage)}")
            below.append(Content.styled(" " * LABEL + words, "$quiet"))
        return [*heatmap(layers, width, height - len(below)), *below]
