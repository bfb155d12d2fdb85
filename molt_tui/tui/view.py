"""What one refresh of a screen shows: plain values, complete and clean, made off the UI thread from the services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molt_tui.facts import Facts
from molt_tui.tui.widgets.braille import Point
from molt_tui.verdict import Verdict


@dataclass(frozen=True)
class EventLine:
    """One event as a sentence. `t` is the writer's wall time."""

    t: float | None
    kind: str
    text: str
    step: int | None = None


@dataclass(frozen=True)
class RunView:
    """One run at one moment. `facts` carries state and newest metrics; `curves` the metrics drawn over steps."""

    run_id: str
    name: str
    facts: Facts
    verdicts: Sequence[Verdict]
    version: int | None = None
    attempt: int | None = None
    age_s: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    events: Sequence[EventLine] = ()
    log: Sequence[str] = ()

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.facts.metrics

    def pick(self, *keys: str) -> dict[str, Any]:
        """The newest values of these metrics; what was not reported is left out."""
        return {key: self.metrics[key] for key in keys if key in self.metrics}

    def same_step(self, anchor: str, *keys: str) -> dict[str, Any]:
        """The values that were reported at the same step as `anchor`; what is reported now and then is left out."""
        step = self.facts.steps.get(anchor)
        return {key: value for key, value in self.pick(*keys).items() if self.facts.steps.get(key) == step}

    def family(self, prefix: str) -> dict[str, Any]:
        """The newest values of every metric below a prefix."""
        return {key: value for key, value in self.metrics.items() if key.startswith(prefix)}
