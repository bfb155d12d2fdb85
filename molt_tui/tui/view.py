"""What one refresh of a screen shows: plain values, complete and clean, made off the UI thread from the services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molt_tui.facts import Facts
from molt_tui.tui.widgets.braille import Point
from molt_tui.verdict import Verdict

Layers = tuple[int, tuple[float, ...] | None]  # (step, share per MoE layer; None: not captured)


@dataclass(frozen=True)
class EventLine:
    """One event as a sentence. `t` is the writer's wall time."""

    t: float | None
    kind: str
    text: str
    step: int | None = None


@dataclass(frozen=True)
class RunView:
    """One run at one moment. `facts` carries state and metrics of that moment; `curves` the metrics drawn over all steps.

    `at` is the step that was asked for, None for the newest; `newest_step` is the last one there is.
    """

    run_id: str
    name: str
    facts: Facts
    verdicts: Sequence[Verdict]
    version: int | None = None
    attempt: int | None = None
    age_s: float | None = None
    at: int | None = None
    newest_step: int | None = None
    state: str = ""
    job_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    layers: Sequence[Layers] = ()
    chosen: str | None = None
    events: Sequence[EventLine] = ()
    log: Sequence[str] = ()

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.facts.metrics

    @property
    def alerts(self) -> list[Verdict]:
        """What a person should look at."""
        return [v for v in self.verdicts if v.alarming]

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

    def lag(self, key: str) -> str:
        """Where a value is from, when it is not from the step that is shown: " at step 96"."""
        step, shown = self.facts.steps.get(key), self.facts.steps.get("time/step", self.facts.step)
        return f" at step {step}" if step is not None and shown is not None and step < shown else ""
