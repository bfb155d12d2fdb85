"""What a comparison of runs and groups holds, as data. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from molt_tui.bands import BandPoint, Spread
from molt_tui.text import clean

AXES = {
    "step": "training step",
    "tokens": "tokens through the trainer, prompts included",
    "time": "seconds of training steps; waiting in a queue and start-up do not count",
}
MAX_SUBJECTS, DEFAULT_METRIC = 8, "reward/mean"


@dataclass(frozen=True)
class Subject:
    """One side of a comparison: a run, or all runs of a group. `ref` (a run id or `group:NAME`) names it again."""

    ref: str
    label: str
    run_ids: tuple[str, ...]

    @property
    def is_group(self) -> bool:
        return self.ref.startswith("group:")


@dataclass(frozen=True)
class Several:
    """The different values that the runs of a group have for one setting."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """`settings`: flag -> value per subject (Several where the runs of a group differ), only flags that differ between
    subjects; `final`: metric -> newest value per subject, a Spread for a group; None: not set, not reported.
    `best`: metric -> index of the subject that is ahead, where better is known. `curves`: one per subject, empty where it
    cannot be drawn; `problems` says why."""

    subjects: tuple[Subject, ...]
    metric: str
    by: str
    settings: Mapping[str, Sequence[Any]]
    final: Mapping[str, Sequence[Any]]
    best: Mapping[str, int] = field(default_factory=dict)
    curves: Sequence[Sequence[BandPoint]] = ()
    problems: Sequence[str] = ()


def ahead(values: Sequence[Any], better: str | None) -> int | None:
    """Index of the best of several final values ("higher" or "lower" is better); None when it is not decided."""
    numbers = [value.mean if isinstance(value, Spread) else value for value in values]
    known = [(v, i) for i, v in enumerate(numbers) if isinstance(v, float) and isfinite(v)]
    if better not in ("higher", "lower") or len(known) < 2 or len({v for v, _ in known}) == 1:
        return None
    return (max if better == "higher" else min)(known, key=lambda item: item[0])[1]


def short(value: Any) -> str:
    """A setting or final value as short clean text; a group as mean ± standard deviation."""
    if value is None:
        return "-"
    if isinstance(value, Spread):
        sd = "" if value.sd is None else f" ± {value.sd:.2g}"
        lost = f" ({value.lost} not finite)" if value.lost else ""
        return f"{short(value.mean)}{sd}{lost}"
    if isinstance(value, Several):
        return ", ".join(map(short, value.values))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return json.dumps(value)
    return clean(value)
