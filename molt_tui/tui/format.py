"""Numbers, shares and ages as short text. Absent is "not reported", never 0."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

ABSENT = "not reported"
NO_ADVANTAGE = 1e-12


def number(value: Any, digits: int = 3) -> str:
    """At most `digits` significant digits in at most 8 characters; NaN and infinities by name."""
    if value is None:
        return ABSENT
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf if value > 0 else -math.inf
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    size = abs(value)
    if value.is_integer() and size < 1e5:
        return f"{value:.0f}"
    if size >= 1e6 or size < 1e-2:
        return f"{value:.{digits - 2}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if size >= 1000:
        return f"{value:.0f}" if size < 1e5 else f"{value / 1000:.0f}k"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def advantage(value: float | None) -> str:
    """An advantage; what only rounding left of a centred reward is 0."""
    return number(0.0 if value is not None and abs(value) < NO_ADVANTAGE else value)


def share(value: Any) -> str:
    """A share (0..1) in per cent."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        from molt_tui.facts import percent

        return percent(value)
    return number(value)


def seconds(value: Any) -> str:
    """A duration: milliseconds below 1 s, else as an age."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return number(value)
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 10 else age(value)


def age(value: float | None) -> str:
    """How long ago, in one unit and at most 5 characters: 3 s, 12 m, 5 h, 9 d."""
    if value is None or not math.isfinite(value):
        return "?"
    value = max(0.0, value)
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "m"), (86400, 3600, "h")):
        if value < limit:
            return f"{int(value // size)} {unit}"
    return f"{min(999, int(value // 86400))} d"


def clock(t: float | None) -> str:
    """Local wall time of an event."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(t))
    except (OverflowError, ValueError, OSError):
        return "--:--:--"


def day(t: float | None) -> str:
    """Local date and time to the minute."""
    try:
        return "-" if t is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(t))
    except (OverflowError, ValueError, OSError):
        return "-"


def progress(step: int | None, max_steps: int | None) -> str:
    if step is None:
        return "-"
    return f"{step}/{max_steps}" if max_steps else str(step)


def spread(metrics: Mapping[str, Any], name: str, show: Any = number) -> str | None:
    """min / mean / max of a spread metric as text, one number when they agree; None when it was not reported."""
    parts = [metrics.get(f"{name}/{part}") for part in ("min", "mean", "max")]
    if parts[1] is None:
        return None
    texts = [show(p) if p is not None else "?" for p in parts]
    return (
        texts[1]
        if len(set(texts)) == 1
        else "/".join(t.removesuffix(" %") for t in texts) + (" %" if texts[1].endswith(" %") else "")
    )
