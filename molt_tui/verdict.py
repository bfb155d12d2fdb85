"""What a run is doing, in one line of words: rules over its state and its newest metrics. Pure; no clock, no I/O.

Each rule says what it sees (`text`), what to do (`action`) and what healthy looks like (`healthy`). They are tried in
order of urgency, so the first verdict is the headline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["good", "info", "warn", "bad"]

NO_BEAT_WARN_S, NO_BEAT_BAD_S = 20.0, 60.0
ALL_MASKED = 0.999
IDLE_HIGH, IDLE_MARGIN = 0.25, 0.10
SMOOTHED = ("time/trainer_idle_frac", "time/rollout_idle_frac", "reward/zero_std_group_frac")  # what `recent` should hold
ACTIVE = frozenset({"queued", "starting", "running", "paused", "stopping"})


@dataclass(frozen=True)
class Facts:
    """What the rules may look at.

    state       displayed state of the run (design words: running, paused, ..., lost)
    detail      reason or last error of that state
    beat_age_s  seconds on the reader's clock since the beat was last seen to change; None when never seen
    metrics     newest value of each reported metric; a missing key was not reported
    steps       step of each of those values
    recent      the last few values of metrics that jump from step to step
    """

    state: str
    detail: str = ""
    step: int | None = None
    max_steps: int | None = None
    beat_age_s: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    recent: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def usual(self, key: str) -> float | None:
        """The mean of the last few finite values, so that one odd step does not change the verdict."""
        finite = [v for v in self.recent.get(key, ()) if math.isfinite(v)]
        return sum(finite) / len(finite) if finite else self.number(key)

    def number(self, key: str) -> float | None:
        """The metric as a finite number; None when it is absent, not a number, NaN or infinite."""
        value = self.metrics.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)

    def at_step(self) -> str:
        return "" if self.step is None else f" at step {self.step}"


@dataclass(frozen=True)
class Verdict:
    rule: str
    level: Level
    text: str
    action: str = ""


@dataclass(frozen=True)
class Rule:
    """`see` returns the sentence (or None); `action` is what to press or change; `healthy` what it should look like."""

    name: str
    level: Level
    see: Callable[[Facts], str | None]
    action: str
    healthy: str


def percent(share: float) -> str:
    """A share as text; those next to 0 and 100 % keep digits, so that "not quite" stays visible."""
    value = 100 * share
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"


def _final(state: str, words: str) -> Callable[[Facts], str | None]:
    def see(facts: Facts) -> str | None:
        if facts.state != state:
            return None
        return f"{words}{facts.at_step()}" + (f": {facts.detail}" if facts.detail else "")

    return see


def _completed(facts: Facts) -> str | None:
    if facts.state != "completed":
        return None
    of = f" of {facts.max_steps}" if facts.max_steps else ""
    return "completed" if facts.step is None else f"completed: {facts.step}{of} steps"


def _state(state: str, words: str) -> Callable[[Facts], str | None]:
    def see(facts: Facts) -> str | None:
        return words + (f" ({facts.detail})" if facts.detail else "") if facts.state == state else None

    return see


def _no_beat(limit: float) -> Callable[[Facts], str | None]:
    def see(facts: Facts) -> str | None:
        age = facts.beat_age_s
        if facts.state not in ACTIVE - {"queued"} or age is None or age < limit:
            return None
        return f"no heartbeat for {age:.0f} s"

    return see


def _not_finite(facts: Facts) -> str | None:
    """Any reported number that is NaN or infinite; the loss side first, since the rest follows from it."""
    bad = [k for k, v in facts.metrics.items() if isinstance(v, float) and not math.isfinite(v)]
    if not bad:
        return None
    first = min(bad, key=lambda k: (not k.startswith(("loss/", "optim/")), k))
    value = facts.metrics[first]
    word = "NaN" if math.isnan(value) else "infinite"
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    step = facts.steps.get(first, facts.step)
    return f"{first} is {word}" + ("" if step is None else f" at step {step}") + more


def _all_masked(facts: Facts) -> str | None:
    unit = {"is/masked_frac": "token", "is/masked_seq_frac": "sequence"}
    for key, word in unit.items():
        value = facts.number(key)
        if value is not None and value >= ALL_MASKED:
            return f"every {word} is masked{facts.at_step()}: no gradient"
    kept = facts.number("is/kept_grad_frac")
    if kept is not None and kept <= 1 - ALL_MASKED:
        return f"the correction removes the whole gradient{facts.at_step()}"
    return None


def _no_update(facts: Facts) -> str | None:
    return f"nothing to train{facts.at_step()}: step skipped" if facts.number("optim/skipped") else None


def _same_reward(facts: Facts) -> str | None:
    share = facts.usual("reward/zero_std_group_frac")
    if share is None or share < 0.95:
        return None
    return f"{percent(share)} of groups have equal rewards: almost no gradient"


def _replay_leaks(facts: Facts) -> str | None:
    share = facts.number("routing/replayed_mismatch_frac")
    return f"routing replay misses {percent(share)} of expert choices" if share else None


def idle_fractions(facts: Facts) -> tuple[float | None, float | None]:
    """(trainer idle, engines idle) as shares of the step; the trainer's falls back to its waiting time."""
    trainer = facts.usual("time/trainer_idle_frac")
    wait, step = facts.number("time/wait_batch"), facts.number("time/step")
    if trainer is None and wait is not None and step:
        trainer = min(1.0, wait / step)
    return trainer, facts.usual("time/rollout_idle_frac")


def _queue_words(facts: Facts) -> str:
    depth, capacity = facts.number("queue/depth"), facts.number("queue/capacity")
    if depth is None or not capacity:
        return ""
    return f", queue {depth:.0f} of {capacity:.0f}"


def _alternating(facts: Facts) -> str | None:
    trainer, engines = idle_fractions(facts)
    if trainer is None or engines is None or min(trainer, engines) < IDLE_HIGH:
        return None
    return f"both sides wait in turn: trainer idle {percent(trainer)}, engines idle {percent(engines)}"


def _generation_bound(facts: Facts) -> str | None:
    trainer, engines = idle_fractions(facts)
    if trainer is None or trainer < IDLE_HIGH or trainer < (engines or 0.0) + IDLE_MARGIN:
        return None
    return f"generation-bound: trainer idle {percent(trainer)}{_queue_words(facts)}"


def _trainer_bound(facts: Facts) -> str | None:
    trainer, engines = idle_fractions(facts)
    if engines is None or engines < IDLE_HIGH or engines < (trainer or 0.0) + IDLE_MARGIN:
        return None
    return f"trainer-bound: engines idle {percent(engines)}{_queue_words(facts)}"


def _balanced(facts: Facts) -> str | None:
    trainer, engines = idle_fractions(facts)
    if trainer is None:
        return None
    other = "" if engines is None else f", engines idle {100 * engines:.0f} %"
    return f"balanced: trainer idle {100 * trainer:.0f} %{other}"


def _first_step(facts: Facts) -> str | None:
    if facts.state != "running":
        return None
    return "running: no step finished yet" if facts.step is None or not facts.metrics else "running"


RULES: tuple[Rule, ...] = (
    Rule("completed", "good", _completed, "press y to copy the id, l to read the log", "every step done"),
    Rule("failed", "bad", _final("failed", "failed"), "press l for the log, p to go on from the last checkpoint",
         "a run ends completed"),
    Rule("lost", "bad", _final("lost", "lost"), "nothing runs any more; press p to go on from the last checkpoint",
         "the beat counter moves every second"),
    Rule("timeout", "warn", _final("timeout", "out of time"), "press p to go on from the last checkpoint",
         "a run ends completed"),
    Rule("preempted", "warn", _final("preempted", "preempted"), "press p to go on from the last checkpoint",
         "a run ends completed"),
    Rule("cancelled", "info", _final("cancelled", "stopped"), "press p to go on from the last checkpoint",
         "a run ends completed"),
    Rule("no-beat", "bad", _no_beat(NO_BEAT_BAD_S), "press l for the log; x stops what is left of it",
         "the beat counter moves every second"),
    Rule("late-beat", "warn", _no_beat(NO_BEAT_WARN_S), "wait a moment or press l for the log",
         "the beat counter moves every second"),
    Rule("queued", "info", _state("queued", "waiting in the queue"), "", "running"),
    Rule("starting", "info", _state("starting", "starting"), "engines and trainer come up; press l for the log", "running"),
    Rule("paused", "info", _state("paused", "paused"), "press p to go on", "running"),
    Rule("stopping", "info", _state("stopping", "stopping"), "it writes a checkpoint, then ends", "ends within a minute"),
    Rule("not-finite", "bad", _not_finite, "press x to stop it; launch again with a lower actor.adam.lr or actor.max_norm",
         "every metric is finite"),
    Rule("all-masked", "bad", _all_masked, "widen is_correction_threshold or turn on train.routing_replay",
         "a few per cent masked"),
    Rule("skipped", "warn", _no_update, "lower the staleness or check the environment's rewards", "every step updates"),
    Rule("same-reward", "warn", _same_reward, "the task is too easy or too hard: change the prompts or the reward",
         "under half of the groups"),
    Rule("replay-leaks", "warn", _replay_leaks, "log-probs are not comparable; report it with this run's id",
         "exactly 0"),
    Rule("alternating", "info", _alternating, "raise train.max_staleness to let both sides work at once",
         "both idle shares under 25 %"),
    Rule("generation-bound", "warn", _generation_bound, "add engines (vllm.num_engines) or raise train.max_staleness",
         "trainer idle under 25 %"),
    Rule("trainer-bound", "warn", _trainer_bound, "add trainer ranks or move engines' share to the trainer",
         "engines idle under 25 %"),
    Rule("balanced", "good", _balanced, "nothing to do", "both idle shares under 25 %"),
    Rule("running", "info", _first_step, "", "a step every few seconds to minutes"),
)  # fmt: skip


def judge(facts: Facts) -> list[Verdict]:
    """Every rule that applies, most urgent first. Final and waiting states speak for themselves: they end the list."""
    verdicts = []
    for rule in RULES:
        text = rule.see(facts)
        if text is not None:
            verdicts.append(Verdict(rule.name, rule.level, text, rule.action))
            if facts.state not in ACTIVE:
                break
    return verdicts


def headline(facts: Facts) -> Verdict:
    """The first verdict; a state without any rule is named as it is."""
    found = judge(facts)
    return found[0] if found else Verdict("unknown", "info", facts.state or "unknown")
