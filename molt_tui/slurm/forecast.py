"""Where a run will stand when its job's time is up. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """Times in epoch seconds of this host. `reached` is the step at the limit, `done` when the last step would end."""

    seconds_per_step: float
    reached: int | None
    done: float | None
    limit: float | None
    enough: bool | None
    sentence: str


def pace(points: Sequence[tuple[int, float]], last: int = 20) -> float | None:
    """Seconds per step over the newest (step, time) points; None with fewer than two steps."""
    recent = sorted(points)[-last:]
    if len(recent) < 2 or recent[-1][0] == recent[0][0]:
        return None
    seconds = (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])
    return seconds if seconds > 0 else None


def forecast(points: Sequence[tuple[int, float]], *, max_steps: int | None, limit: float | None, last_checkpoint: int | None,
             now: float) -> Forecast | None:  # fmt: skip
    """What the newest steps say about the time limit; None before there is a pace. `limit` is the job's end, if known."""
    per_step = pace(points)
    if per_step is None:
        return None
    step, at = max(points)
    done = at + per_step * (max_steps - step) if max_steps is not None and max_steps > step else None
    reached = step + max(0, int((limit - at) / per_step)) if limit is not None else None
    if reached is not None and max_steps is not None:
        reached = min(reached, max_steps)
    enough = None if limit is None or done is None else done <= limit
    words = [f"at this pace step {max_steps} at {_clock(done, now)}" if done is not None else f"{per_step:.1f} s a step"]
    if limit is not None:
        words.append(f"limit {_clock(limit, now)}" + (f" (step {reached})" if enough is False or done is None else ""))
    if last_checkpoint is not None:
        words.append(f"last checkpoint {last_checkpoint}")
    return Forecast(per_step, reached, done, limit, enough, ", ".join(words))


def _clock(t: float | None, now: float) -> str:
    if t is None:
        return "?"
    there = time.localtime(t)
    today = time.localtime(now)
    if there[:3] == today[:3]:
        return time.strftime("%H:%M", there)
    return time.strftime("%a %H:%M" if t - now < 6 * 86400 else "%Y-%m-%d %H:%M", there)
