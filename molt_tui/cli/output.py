"""Standard output is data: JSON or plain aligned tables. Standard error is narration."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from molt_tui.text import clean, shorten, width_of

MISSING = "-"


def emit_json(value: Any) -> None:
    """One JSON document; nothing in it can act on a terminal. NaN and infinities travel as strings."""
    from engine.wire import to_wire

    print(json.dumps(to_wire(value), ensure_ascii=True, allow_nan=False, indent=2).replace("\x7f", "\\u007f"))


def say(message: str) -> None:
    """A line for the person, not for the script."""
    print(clean(message), file=sys.stderr, flush=True)


def cell(value: Any) -> str:
    """A value as short text; None is shown as a dash."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        if abs(value) >= 1e15:
            return f"{value:.6g}"
        return f"{value:.0f}" if value.is_integer() else f"{value:.2f}" if abs(value) >= 1e6 else f"{value:.6g}"
    return clean(value)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Columns separated by two spaces; on a terminal the last column is cut at its edge. Headers in `right` are aligned right."""
    lines = [list(headers), *([cell(v) for v in row] for row in rows)]
    widths = [max(width_of(line[i]) for line in lines) for i in range(len(headers))]
    room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1) if sys.stdout.isatty() else None
    for line in lines:
        parts = [_pad(text, width, name in right) for text, width, name in zip(line, widths, headers)]
        if room is not None and room > 8:
            parts[-1] = shorten(parts[-1].rstrip(), room)
        print("  ".join(parts).rstrip())


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def pairs(items: Iterable[tuple[str, Any]]) -> None:
    """Aligned `name  value` lines; values that are not reported are left out."""
    shown = [(name, cell(value)) for name, value in items if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def age(t: float | None, now: float | None = None) -> str:
    """How long ago, in one unit."""
    if t is None:
        return MISSING
    seconds = max((time.time() if now is None else now) - t, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def clock(t: float | None) -> str:
    """Local date and time to the second."""
    try:
        return MISSING if t is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
    except (OverflowError, ValueError, OSError):
        return cell(t)
