"""What is known of a run at one moment, as the verdict rules see it. Pure values; no clock, no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from molt_tui.bottleneck import FEWEST, Bottleneck, Side, find_bottleneck

Sample = tuple[int, float]  # (step, value); NaN and infinities included
WINDOW, LONG_WINDOW, USUAL = 64, 400, 8
# Metrics of which the rules look at more than the newest value, and how many values they need.
WINDOWED: dict[str, int] = {
    **dict.fromkeys(
        ("time/trainer_idle_frac", "time/rollout_idle_frac", "time/step", "time/weight_sync", "queue/depth",
         "reward/zero_std_group_frac", "is/masked_frac", "is/masked_seq_frac", "is/kept_grad_frac", "is/ess_frac",
         "staleness/mean", "staleness/masked_tokens", "staleness/dropped_rollouts", "loss/policy", "loss/kl", "loss/entropy",
         "offpolicy/k3_kl", "mismatch/k3_kl", "optim/grad_norm", "optim/skipped", "rollout/failed", "rollout/truncated_frac",
         "engine/preemptions/mean", "engine/running/min", "engine/running/mean"),
        WINDOW,
    ),
    "reward/mean": LONG_WINDOW,
    "rollout/response_len_mean": LONG_WINDOW,
}  # fmt: skip
FULL_DISK = ("No space left", "quota exceeded", "could not be written", "Read-only file system")
EVAL_ENDS = ("/exact_frac", "/score_mean")  # of eval/<name>/...; their last LONG_WINDOW values are known too


@dataclass(frozen=True)
class Fault:
    """Something that failed, by the run's own words."""

    what: str
    detail: str = ""
    step: int | None = None
    fatal: bool = False


@dataclass(frozen=True)
class Facts:
    """Times are seconds; None means not known.

    state        displayed state of the run (design words: running, paused, ..., lost)
    detail       reason or last error of that state
    beat_age_s   on the reader's clock since the beat was last seen to change
    step_age_s   between the newest step and the newest beat, by the run's own clock
    time_left_s  until the job's time limit
    metrics      newest value of each reported metric; a missing key was not reported
    steps        step of each of those values
    history      the last values of the metrics in WINDOWED and of evaluations, oldest first
    config       the resolved configuration, flat
    """

    state: str
    detail: str = ""
    step: int | None = None
    max_steps: int | None = None
    beat_age_s: float | None = None
    step_age_s: float | None = None
    time_left_s: float | None = None
    last_checkpoint: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    history: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    faults: Sequence[Fault] = ()

    def number(self, key: str) -> float | None:
        """The metric as a finite number; None when it is absent, not a number, NaN or infinite."""
        return finite(self.metrics.get(key))

    def setting(self, key: str) -> float | None:
        return finite(self.config.get(key))

    def samples(self, key: str) -> list[Sample]:
        """The finite values of its history."""
        return [(step, value) for step, value in self.history.get(key, ()) if math.isfinite(value)]

    def last(self, key: str, count: int) -> list[float]:
        """The last `count` finite values; empty when there are fewer."""
        found = [value for _, value in self.samples(key)[-count:]]
        return found if len(found) == count else []

    def usual(self, key: str, count: int = USUAL) -> float | None:
        """The mean of the last few finite values, so that one odd step does not change the verdict."""
        found = [value for _, value in self.samples(key)[-count:]]
        return fmean(found) if found else self.number(key)

    def at_step(self) -> str:
        return "" if self.step is None else f" at step {self.step}"

    def since(self, key: str, holds: Callable[[float], bool]) -> str:
        """Since which step the last values of the metric hold; at which, when only the newest does."""
        steps = []
        for step, value in reversed(self.history.get(key, ())):
            if not holds(value):
                break
            steps.append(step)
        if len(steps) > 1:
            earlier = len(steps) == len(self.history[key]) and steps[-1] > 1
            return f" since step {steps[-1]}" + (" or before" if earlier else "")
        step = steps[0] if steps else self.steps.get(key, self.step)
        return "" if step is None else f" at step {step}"

    def jump(self, key: str, factor: float, floor: float, recent: int = 3) -> tuple[float, float] | None:
        """(now, usual before) when each of the last few values is above `floor` and `factor` times the usual.

        Usual is the lower quartile of the window before them: a jump is reported until it fills three quarters of the window.
        """
        values = [value for _, value in self.samples(key)]
        if len(values) < recent + 8:
            return None
        before = sorted(values[:-recent])[(len(values) - recent) // 4]
        lowest = min(values[-recent:])
        return (values[-1], before) if lowest > floor and lowest > factor * before else None

    def change(self, key: str, first: int, last: int) -> tuple[float, float] | None:
        """The metric near two steps, averaged over up to five values each."""
        found = self.samples(key)
        early, late = [v for s, v in found if s >= first][:5], [v for s, v in found if s <= last][-5:]
        return (fmean(early), fmean(late)) if early and late else None

    def bottleneck(self) -> Bottleneck | None:
        """Which side waits for the other; None when that is not known or not yet."""
        past, engines = self.samples("time/trainer_idle_frac"), dict(self.samples("time/rollout_idle_frac"))
        if past:
            return find_bottleneck([share for _, share in past], [engines.get(step) for step, _ in past])
        trainer, wait, step = (self.number(f"time/{name}") for name in ("trainer_idle_frac", "wait_batch", "step"))
        if trainer is None and wait is not None and step:
            trainer = min(1.0, wait / step)
        known = None if trainer is None else ([trainer] * FEWEST, [self.number("time/rollout_idle_frac")] * FEWEST)
        return None if known is None else find_bottleneck(*known)

    def waits(self, side: Side) -> Bottleneck | None:
        """The bottleneck, when it is this one."""
        found = self.bottleneck()
        return found if found is not None and found.side == side else None

    def only_cores(self) -> bool:
        """Whether it runs on the cores of one machine, without any GPU."""
        spread_out = max(self.setting("actor.num_nodes") or 1, self.setting("slurm.nodes") or 1) > 1
        gpus = self.config.get("placement.device") == "cuda" or any(k.startswith(("host/gpu", "perf/gpu")) for k in self.metrics)
        return "host/cpu/mean" in self.metrics and not gpus and not spread_out

    def refused_write(self) -> str | None:
        """What the file system said when it refused to write; None when it did not."""
        said = [self.detail, *(f"{fault.what}: {fault.detail}" for fault in self.faults[-3:])]
        return next((text for text in said if any(words in text for words in FULL_DISK)), None)

    def queue_words(self) -> str:
        depth, capacity = self.number("queue/depth"), self.number("queue/capacity")
        return "" if depth is None or not capacity else f", queue {depth:.0f} of {capacity:.0f}"


def finite(value: Any) -> float | None:
    """The value as a finite number; None for anything else, numbers beyond a float included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def percent(share: float) -> str:
    """A share as text; those next to 0 and 100 % keep digits, so that "not quite" stays visible."""
    value = 100 * share
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"


def short(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


def span(seconds: float) -> str:
    """A duration in one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
