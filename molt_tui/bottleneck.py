"""Which side of a run waits for the other, judged over many steps so that the answer does not turn with each of them. Pure.

One batch is late and the next one is there at once: idle shares of single steps jump between 0 and 60 %. Means over STEPS steps
are compared with IDLE_HIGH, and what was found stays true until a mean is KEEP beyond it. What was found follows from replaying
the history, not from what was said before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Side = Literal["alternating", "generation-bound", "trainer-bound", "balanced"]
IDLE_HIGH, KEEP = 0.25, 0.05
STEPS, FEWEST = 16, 4  # the window; below so many steps nothing is said


@dataclass(frozen=True)
class Bottleneck:
    """`trainer`, `engines`: mean idle shares of the last STEPS steps; None where it is not reported."""

    side: Side
    trainer: float
    engines: float | None


def find_bottleneck(trainer: Sequence[float], engines: Sequence[float | None]) -> Bottleneck | None:
    """From the idle shares of consecutive steps, oldest first; None while there are fewer than FEWEST."""
    waits, others = _means(trainer), _means(engines)
    found: Side | None = None
    for wait, other in list(zip(waits, others))[FEWEST - 1 :]:
        assert wait is not None
        if found is None or not _holds(found, wait, other or 0.0):
            found = _side(wait, other or 0.0)
    return None if found is None else Bottleneck(found, waits[-1], others[-1])


def _side(trainer: float, engines: float) -> Side:
    if min(trainer, engines) >= IDLE_HIGH:
        return "alternating"
    if max(trainer, engines) < IDLE_HIGH:
        return "balanced"
    return "generation-bound" if trainer > engines else "trainer-bound"


def _holds(side: Side, trainer: float, engines: float) -> bool:
    """Whether what was found before is still true within KEEP."""
    low, high = IDLE_HIGH - KEEP, IDLE_HIGH + KEEP
    return {
        "alternating": min(trainer, engines) >= low,
        "generation-bound": trainer >= low and engines < high,
        "trainer-bound": engines >= low and trainer < high,
        "balanced": max(trainer, engines) < high,
    }[side]


def _means(values: Sequence[float | None]) -> list[float | None]:
    """Of each value and the STEPS - 1 before it, absent ones left out."""
    sums = [0.0, *accumulate(0.0 if value is None else value for value in values)]
    counts = [0, *accumulate(value is not None for value in values)]
    starts = [max(0, end - STEPS) for end in range(1, len(values) + 1)]
    return [
        (sums[end] - sums[start]) / (counts[end] - counts[start]) if counts[end] > counts[start] else None
        for end, start in enumerate(starts, 1)
    ]
