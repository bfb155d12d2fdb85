"""From records of a run directory to rows of the database: pure, and tolerant of anything that parses as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

MAX_TEXT = 32_768  # characters of a rollout that are kept for search
MAX_LOG_RATIO = 30.0
_INT64 = 1 << 63
_SPECIAL = {"nan": "nan", "inf": "inf", "-inf": "-inf"}

Value = tuple[float | None, str | None, str | None]
EventRow = tuple[int, int, str, int, float | None, str, int | None, int | None, str]
MetricRow = tuple[int, int, int, int, float | None, float | None, str | None, str | None]


def integer(value: Any) -> int | None:
    """A whole number that SQLite can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    return value if -_INT64 <= value < _INT64 else None


def number(value: Any) -> float | None:
    """A finite number; None for anything else ("nan" and infinities of the wire included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def string(value: Any) -> str | None:
    """Text that SQLite can store: lone surrogates are replaced; None stays None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else dump(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def dump(value: Any) -> str:
    """Compact ASCII JSON."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def metric_value(value: Any) -> Value | None:
    """(value, special, json) of one reported metric; None when nothing was measured."""
    if type(value) is float and -math.inf < value < math.inf:
        return value, None, None
    if value is None:
        return None
    if isinstance(value, (bool, int)):
        try:
            return float(value), None, None
        except OverflowError:
            return None, "inf" if value > 0 else "-inf", None
    if isinstance(value, float):
        return None, "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf"), None
    if isinstance(value, str) and value in _SPECIAL:
        return None, value, None
    return None, None, dump(value)


def event_row(run_num: int, attempt: int, stream: str, event: dict[str, Any]) -> EventRow | None:
    """The row of one event without its metrics; None when it has no usable sequence number."""
    seq = integer(event.get("seq"))
    if seq is None:
        return None
    head = {"protocol", "run", "attempt", "seq", "t", "kind", "step", "version", "metrics"}
    data = {k: v for k, v in event.items() if k not in head}
    return (run_num, attempt, stream, seq, number(event.get("t")), string(event["kind"]) or "",
            integer(event.get("step")), integer(event.get("version")), dump(data))  # fmt: skip


def metric_items(event: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    """Key and value of everything an event measured."""
    metrics = event.get("metrics")
    if not isinstance(metrics, dict):
        return
    for key, raw in metrics.items():
        value = metric_value(raw)
        if value is not None:
            yield key, value


def rollout_row(record: dict[str, Any]) -> dict[str, Any] | None:
    """Columns of rollout_rows (all but run_num) for one line of rollouts/*.jsonl.gz; None when it cannot be placed.

    ratio_extreme: trainer/sampler ratio of the sampled token whose log-probs differ most; staleness_max in versions.
    """
    attempt, step = integer(record.get("attempt")), integer(record.get("step"))
    identity = record.get("rollout_id")
    raw = record.get("segments")
    if attempt is None or step is None or identity is None or not isinstance(raw, list):
        return None
    segments = [s for s in raw if isinstance(s, dict)]
    counts = [_segment_counts(s) for s in segments]
    versions = [v for c in counts for v in c["versions"]]
    gaps = [gap for c in counts for gap in c["gaps"]]
    trained = integer(record.get("version"))
    label, info = string(record.get("label")), record.get("info")
    return {
        "attempt": attempt, "step": step, "rollout_id": string(identity), "prompt_id": string(record.get("prompt_id")),
        "group_id": string(record.get("group_id")), "reward": number(record.get("reward")),
        "score": number(record.get("score")), "advantage": number(record.get("advantage")),
        "turns": integer(record.get("turns")), "truncated": int(bool(record.get("truncated"))), "segments": len(segments),
        "sampled": sum(c["sampled"] for c in counts), "masked": _total(c["masked"] for c in counts),
        "mismatched": _total(c["mismatched"] for c in counts), "min_version": min(versions, default=None),
        "max_version": max(versions, default=None), "trained_version": trained,
        "staleness_max": trained - min(versions) if trained is not None and versions else None,
        "ratio_mean": math.fsum(map(math.exp, gaps)) / len(gaps) if gaps else None,
        "ratio_extreme": math.exp(max(gaps, key=abs)) if gaps else None, "label": None if label is None else label[:MAX_TEXT],
        "info": dump(info) if isinstance(info, dict) and info else None, **_texts(segments),
    }  # fmt: skip


def _texts(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """The text of all tokens, bounded, and how many of its characters are the prompt."""
    pieces = [str(p) for s in segments for p in _list(s.get("pieces"))]
    mask = _list(segments[0].get("mask")) if segments else []
    start = next((i for i, m in enumerate(mask) if m == 1), len(mask))
    text = string("".join(pieces)[:MAX_TEXT]) or ""
    return {"prompt_chars": min(len(text), sum(map(len, pieces[:start]))), "text": text}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def _total(parts: Iterator[int | None]) -> int | None:
    """Sum of the parts that were measured; None when none was."""
    known = [p for p in parts if p is not None]
    return sum(known) if known else None


def _segment_counts(segment: dict[str, Any]) -> dict[str, Any]:
    """Sampled, masked and routing-mismatched tokens of one segment, the versions that sampled it, and its log-ratios."""
    mask = [m == 1 for m in _list(segment.get("mask"))]
    kept, mismatch = segment.get("kept"), segment.get("routing_mismatch")
    versions = [integer(v) for v, sampled in zip(_list(segment.get("versions")), mask) if sampled]
    pairs = zip(_list(segment.get("train_logprobs")), _list(segment.get("logprobs")), mask)
    return {
        "sampled": sum(mask),
        "masked": None if kept is None else sum(1 for k, sampled in zip(_list(kept), mask) if sampled and k == 0),
        "mismatched": None if mismatch is None else sum(1 for layers in _list(mismatch) if layers),
        "versions": [v for v in versions if v is not None and v >= 0],
        "gaps": [gap for new, old, sampled in pairs if sampled and (gap := log_ratio(new, old)) is not None],
    }


def log_ratio(trainer: Any, sampler: Any) -> float | None:
    """Log of the ratio trainer/sampler, clamped to +-30 as in the loss; None where one of them is not a finite number."""
    new, old = number(trainer), number(sampler)
    return None if new is None or old is None else min(max(new - old, -MAX_LOG_RATIO), MAX_LOG_RATIO)
