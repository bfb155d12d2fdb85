"""Every special character the screens draw with, in one place, and how a run's state looks: glyph, word, colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

SPARK = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
NOT_FINITE = "×"
MARKED, HALF_MARKED, FOLDED, UNFOLDED, RISING, FALLING = "◆", "◇", "▸", "▾", "↑", "↓"
# Levels of a verdict; "warn" and "bad" are those of a finding before a launch.
MARK = {"good": "✔", "info": "●", "warning": "▲", "critical": "✖", "warn": "▲", "bad": "✖"}
LEVEL_STYLE = {"good": "$text-success", "info": "$text-accent", "warning": "$text-warning", "critical": "$text-error",
               "warn": "$text-warning", "bad": "$text-error"}  # fmt: skip


@dataclass(frozen=True)
class StateLook:
    glyph: str
    word: str
    style: str


_LOOKS = {
    "draft": StateLook("◌", "draft", "$quiet"),
    "queued": StateLook("◔", "queued", "$text-accent"),
    "starting": StateLook("◑", "starting", "$text-accent"),
    "running": StateLook("▶", "running", "$text-success"),
    "paused": StateLook("‖", "paused", "$text-warning"),
    "stopping": StateLook("▽", "stopping", "$text-warning"),
    "completed": StateLook("✔", "completed", "$text-success"),
    "failed": StateLook("✖", "failed", "$text-error"),
    "cancelled": StateLook("■", "cancelled", "$quiet"),
    "preempted": StateLook("↯", "preempted", "$text-warning"),
    "timeout": StateLook("◷", "timeout", "$text-warning"),
    "lost": StateLook("?", "lost", "$text-error"),
}


def state_look(state: str) -> StateLook:
    """How a state is shown; an unknown state is shown by its own word."""
    return _LOOKS.get(state) or StateLook("·", state, "$quiet")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as one line of bars; NaN and infinities are crosses, a constant but 0 is a middle line."""
    shown = list(values)[-width:]
    finite = [v for v in shown if isfinite(v)]
    if not finite:
        return NOT_FINITE * len(shown)
    low, high = min(finite), max(finite)
    scale = max(abs(low), abs(high)) or 1.0
    span = high / scale - low / scale

    def bar(value: float) -> str:
        if not isfinite(value):
            return NOT_FINITE
        if span == 0:
            return SPARK[3] if value else SPARK[0]
        return SPARK[round((value / scale - low / scale) / span * (len(SPARK) - 1))]

    return "".join(bar(v) for v in shown)


def bar(share: float | None, width: int) -> str:
    """A horizontal bar of exactly `width` cells, filled to `share` in eighths of a cell; empty when it is unknown."""
    if share is None or not isfinite(share) or width < 1:
        return " " * max(0, width)
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)
