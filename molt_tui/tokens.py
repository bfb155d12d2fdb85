"""One recorded rollout token by token: what was sampled, by which policy, and why a token was trained or not.

Records come from a run directory and are data: any field may be missing, of another type, or shorter than the others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from molt_tui.store.rows import MAX_LOG_RATIO, integer, log_ratio, string
from molt_tui.text import clean

PROMPT, FEEDBACK, TRAINED = "prompt", "feedback", "trained"
STALE, LOW, HIGH, MASKED = "over age", "ratio low", "ratio high", "masked"
NOT_TRAINED = frozenset({STALE, LOW, HIGH, MASKED})
SAMPLED = NOT_TRAINED | {TRAINED}
_FLOOR = 1e-6
_WIRE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


# How lists of rollouts can be ordered, and whether the largest comes first.
ORDERS = {"recorded": False, "reward": True, "length": True, "masked": True, "ratio": True, "experts": True, "staleness": True}


@dataclass(frozen=True)
class Place:
    """Where a rollout is recorded."""

    attempt: int
    step: int
    rollout_id: str


@dataclass(frozen=True)
class Rule:
    """What the run masks by: the importance correction and the staleness bound; None where it is not known."""

    level: str = "off"
    mode: str = "mask"
    gating: str = "ratio"
    low: float = 0.5
    high: float = 5.0
    max_staleness: int | None = None

    @property
    def masks(self) -> bool:
        return self.level != "off" and self.mode == "mask"


def rule_of(config: Mapping[str, Any]) -> Rule:
    """The rule in a flat run configuration; a run whose configuration cannot be read has none."""
    prefix = "algo.advantage.is_correction_"
    band = config.get(f"{prefix}threshold")
    values = [v for v in band if isinstance(v, (int, float))] if isinstance(band, (list, tuple)) else [0.5, 5.0]
    low, high = (values[0], values[-1]) if len(values) > 1 else (0.0, values[0] if values else math.inf)
    return Rule(str(config.get(f"{prefix}level", "off")), str(config.get(f"{prefix}mode", "mask")),
                str(config.get(f"{prefix}gating", "ratio")), float(low), float(high),
                integer(config.get("train.max_staleness")))  # fmt: skip


@dataclass(frozen=True)
class Rollout:
    """One rollout of one or more segments. All lists have one entry per token, segments one after the other; `pieces` are
    clean text. `logprobs` are the sampler's, None where nothing was sampled; `layers` the MoE layers in which the router
    differed from the sampler's, None where it was not measured."""

    run: str
    attempt: int
    step: int
    rollout_id: str
    group_id: str
    prompt_id: str
    reward: float | None
    score: float | None
    advantage: float | None
    turns: int | None
    truncated: bool
    label: str | None
    info: dict[str, Any]
    trained_version: int | None
    rule: Rule
    ids: list[int | None]
    pieces: list[str]
    states: list[str]
    logprobs: list[float | None]
    train_logprobs: list[float | None]
    versions: list[int | None]
    layers: list[tuple[int, ...] | None]
    advantages: list[float | None] | None
    segment_starts: list[int]
    statistics: list[float | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def gap(self, index: int) -> float | None:
        """Log of the ratio trainer/sampler; None where it was not measured or is not finite."""
        if self.states[index] not in SAMPLED:
            return None
        return log_ratio(self.train_logprobs[index], self.logprobs[index])

    def ratio(self, index: int) -> float | None:
        gap = self.gap(index)
        return None if gap is None else math.exp(gap)

    def staleness(self, index: int) -> int | None:
        """Versions between the policy that sampled a token and the trainer that consumed it."""
        version = self.versions[index]
        return None if version is None or self.trained_version is None else self.trained_version - version

    def advantage_of(self, index: int) -> float | None:
        if self.states[index] not in SAMPLED:
            return None
        return self.advantage if self.advantages is None else self.advantages[index]

    def segment(self, index: int) -> int:
        """Number of the segment of a token, from 0."""
        return max(0, bisect_right(self.segment_starts, index) - 1)

    @cached_property
    def sampled(self) -> int:
        return sum(state in SAMPLED for state in self.states)

    @cached_property
    def masked(self) -> int:
        return sum(state in NOT_TRAINED for state in self.states)

    @cached_property
    def borders(self) -> dict[int, str]:
        """Index -> words, where the policy version changes, feedback ends, or a segment begins."""
        found: dict[int, str] = {start: f"segment {n + 1}" for n, start in enumerate(self.segment_starts) if n}
        version: int | None = None
        for i, state in enumerate(self.states):
            if i in found:
                version = None
            if state in SAMPLED and self.versions[i] != version:
                version = self.versions[i]
                word = "v?" if version is None else f"v{version}"
                found[i] = f"{found[i]} {word}" if i in found else word
        return found

    def reason(self, index: int) -> str:
        """Why the token was trained or not, in words."""
        state, rule = self.states[index], self.rule
        if state == PROMPT:
            return "not trained: prompt"
        if state == FEEDBACK:
            return "not trained: feedback of the environment"
        if state == STALE:
            return f"masked: over age (at most {rule.max_staleness} behind)"
        if state in (LOW, HIGH):
            unit = {"token": "ratio", "seq": "ratio of the whole segment", "geo": "mean ratio of the segment"}
            what = unit.get(rule.level, rule.level) if rule.gating == "ratio" else f"{rule.gating} ({rule.level})"
            value = self.statistics[index]
            side, bound = ("below", rule.low) if state == LOW else ("above", rule.high)
            return f"masked: {what} {'?' if value is None else f'{value:.3g}'} is {side} {bound:g}"
        if state == MASKED:
            return "masked: the record does not say why"
        return "trained"

    def text(self, states: frozenset[str] | None = None) -> str:
        """The clean text, of tokens in these states only."""
        return "".join(p for p, s in zip(self.pieces, self.states) if states is None or s in states)


def parse(record: Mapping[str, Any], config: Mapping[str, Any]) -> Rollout:
    """A rollout from its record and the run's flat configuration; never raises on what a record holds."""
    raw = record.get("segments")
    segments = [s for s in raw if isinstance(s, dict)] if isinstance(raw, list) else []
    trained = integer(record.get("version"))
    rule = rule_of(config)
    bound = integer(record.get("max_staleness"))
    if bound is not None:
        rule = Rule(rule.level, rule.mode, rule.gating, rule.low, rule.high, bound)
    columns: dict[str, list] = {name: [] for name in ("ids", "pieces", "states", "logprobs", "train_logprobs", "versions",
                                                      "layers", "statistics", "advantages")}  # fmt: skip
    starts = []
    for segment in segments:
        starts.append(len(columns["ids"]))
        for name, values in _segment_columns(segment, trained, rule).items():
            columns[name] += values
    own = any(isinstance(s.get("advantages"), list) for s in segments)
    info = record.get("info")
    return Rollout(
        run=clean(record.get("run", "")), attempt=integer(record.get("attempt")) or 0, step=integer(record.get("step")) or 0,
        rollout_id=string(record.get("rollout_id")) or "", group_id=string(record.get("group_id")) or "",
        prompt_id=clean(record.get("prompt_id", "")), reward=real(record.get("reward")), score=real(record.get("score")),
        advantage=real(record.get("advantage")), turns=integer(record.get("turns")), truncated=bool(record.get("truncated")),
        label=string(record.get("label")), info=info if isinstance(info, dict) else {},
        trained_version=trained, rule=rule, segment_starts=starts,
        **{**columns, "advantages": columns["advantages"] if own else None},
    )  # fmt: skip


def real(value: Any) -> float | None:
    """A number of the wire, NaN and infinities included."""
    if isinstance(value, str):
        return _WIRE.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _segment_columns(segment: Mapping[str, Any], trained: int | None, rule: Rule) -> dict[str, list]:
    """Columns of one segment, all as long as its list of token ids (or of pieces, where those are missing)."""
    lists = {k: v for k, v in segment.items() if isinstance(v, list)}
    count = len(lists.get("token_ids") or lists.get("pieces") or ())

    def column(name: str) -> list:
        values = lists.get(name, [])[:count]
        return values + [None] * (count - len(values))

    mask = [m == 1 for m in column("mask")]
    columns = {
        "ids": [integer(v) for v in column("token_ids")],
        "pieces": ["" if p is None else clean(p) for p in column("pieces")],
        "logprobs": [real(v) if m else None for v, m in zip(column("logprobs"), mask)],
        "train_logprobs": [real(v) if m else None for v, m in zip(column("train_logprobs"), mask)],
        "versions": [v if m and (v := integer(raw)) is not None and v >= 0 else None for raw, m in zip(column("versions"), mask)],
        "layers": [_layers(v) for v in column("routing_mismatch")],
        "advantages": [real(v) if m else None for v, m in zip(column("advantages"), mask)],
    }
    columns["statistics"] = _statistics(columns["train_logprobs"], columns["logprobs"], rule)
    columns["states"] = _states(mask, column("kept"), columns, trained, rule)
    return columns


def _layers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(v for v in value if isinstance(v, int) and 0 <= v < 10_000)


def _states(mask: list[bool], kept: list, columns: dict[str, list], trained: int | None, rule: Rule) -> list[str]:
    """The state of every token. Tokens before the first sampled one are the prompt; where `kept` is not reported, what was
    sampled counts as trained."""
    first = mask.index(True) if True in mask else len(mask)
    found = []
    for i, sampled in enumerate(mask):
        if not sampled:
            found.append(PROMPT if i < first else FEEDBACK)
        elif kept[i] != 0:
            found.append(TRAINED)
        else:
            found.append(_why_masked(columns["versions"][i], columns["statistics"][i], trained, rule))
    return found


def _why_masked(version: int | None, statistic: float | None, trained: int | None, rule: Rule) -> str:
    if None not in (version, trained, rule.max_staleness) and trained - version > rule.max_staleness:
        return STALE
    if not rule.masks or statistic is None:
        return MASKED
    return LOW if statistic < rule.low else HIGH if statistic > rule.high else MASKED


def _statistics(trainer: list[float | None], sampler: list[float | None], rule: Rule) -> list[float | None]:
    """What the correction compares with its band, per token (its definition is engine/algo/correction.py)."""
    gaps = [log_ratio(new, old) for new, old in zip(trainer, sampler)]
    if rule.gating != "ratio":
        values = [None if gap is None else _divergence(rule.gating, new, old) for gap, new, old in zip(gaps, trainer, sampler)]
        return values if rule.level == "token" else _spread(values, _mean(values))
    if rule.level == "token":
        return [None if gap is None else math.exp(gap) for gap in gaps]
    total = _mean(gaps)
    if total is not None and rule.level == "seq":
        total *= sum(gap is not None for gap in gaps)
    unit = None if total is None else math.exp(min(max(total, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    return _spread(gaps, unit)


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


def _spread(values: list[float | None], unit: float | None) -> list[float | None]:
    return [None if v is None else unit for v in values]


def _divergence(gating: str, trainer: float, sampler: float) -> float:
    p, q = math.exp(min(sampler, 0.0)), math.exp(min(trainer, 0.0))
    if gating == "tv":
        return abs(p - q)
    p, q = (min(max(x, _FLOOR), 1 - _FLOOR) for x in (p, q))
    return max(0.0, p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
