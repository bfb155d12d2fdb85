"""What a metric means, for screens and widgets."""

from __future__ import annotations

from engine.metrics import describe


def unit(key: str) -> str:
    """Its unit where a reader needs it: not for plain numbers and shares."""
    found = describe(key)
    return found.unit if found is not None and found.unit not in ("value", "ratio", "loss", "norm", "count", "reward") else ""


def meaning(key: str) -> str:
    """One line about it; empty for a metric that this program does not know."""
    found = describe(key)
    return found.meaning if found is not None else ""
