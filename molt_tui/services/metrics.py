"""Metrics and events of one run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from molt_tui.errors import NotFound
from molt_tui.services.runs import Run
from molt_tui.store.database import Store
from molt_tui.text import clean


@dataclass(frozen=True)
class Point:
    """One value of one metric. `value` is a float (NaN and infinities included), a list or a label."""

    step: int
    attempt: int
    t: float | None
    value: Any


def keys(store: Store, run: Run) -> list[str]:
    """Names of everything that the run has reported, sorted."""
    sql = "SELECT k.name FROM latest_rows m JOIN keys k ON k.num = m.key_num WHERE m.run_num = ? ORDER BY k.name"
    return [row["name"] for row in store.rows(sql, (run.num,))]


_FIRST_STEP, _LAST_STEP = -(1 << 63), (1 << 63) - 1


def latest(store: Store, run: Run, *, until: int | None = None) -> dict[str, Point]:
    """The newest value of every metric that the run has reported, or had reported when step `until` was done."""
    sql = (
        "SELECT k.name, m.step, m.attempt, m.t, m.value, m.special, m.json FROM latest_rows m"
        " JOIN keys k ON k.num = m.key_num WHERE m.run_num = ?"
    )
    values: tuple[int, ...] = (run.num,)
    # CROSS JOIN keeps SQLite from walking all of the run's rows instead of one range per key.
    if until is not None:
        sql = (
            "SELECT k.name, m.step, m.attempt, m.t, m.value, m.special, m.json FROM latest_rows l"
            " JOIN keys k ON k.num = l.key_num CROSS JOIN metric_rows m ON m.run_num = l.run_num AND m.key_num = l.key_num"
            " AND m.step = (SELECT max(n.step) FROM metric_rows n WHERE n.run_num = l.run_num AND n.key_num = l.key_num"
            " AND n.step <= ?) WHERE l.run_num = ? ORDER BY m.attempt"
        )
        values = (until, run.num)
    return {row["name"]: _point(row) for row in store.rows(sql, values)}


def series(
    store: Store, run: Run, key: str, *, last: int | None = None, since: int = _FIRST_STEP, until: int | None = None
) -> list[Point]:
    """The curve of one metric in order of step, one point a step (the newest attempt's), from step `since` to `until`; `last`
    bounds the number of points.

    Empty when the run has not reported the key.
    """
    sql = (
        "SELECT m.step, m.attempt, m.t, m.value, m.special, m.json FROM metric_rows m WHERE m.run_num = ? AND m.key_num ="
        " (SELECT num FROM keys WHERE name = ?) AND m.step BETWEEN ? AND ? ORDER BY m.step DESC, m.attempt DESC LIMIT ?"
    )
    bound = -1 if last is None else last + 64
    while True:
        found = store.rows(sql, (run.num, key, since, _LAST_STEP if until is None else until, bound))
        points: list[Point] = []
        for row in found:
            if not points or points[-1].step != row["step"]:
                points.append(_point(row))
        if last is None or len(points) >= last or len(found) < bound:
            break
        bound *= 4
    return points[:last][::-1]


def telling(key: str) -> tuple[bool, str]:
    """Order in which figures of a run are listed: reward and evaluation first, then by name."""
    return not key.startswith(("reward/", "eval/")), key


def require_keys(store: Store, run: Run, wanted: list[str]) -> None:
    """Raise NotFound with a suggestion for a key that the run has not reported."""
    known = keys(store, run)
    for key in wanted:
        if key not in known:
            import difflib

            close = difflib.get_close_matches(key, known, 3, 0.5) or known[:3]
            hint = f"did you mean {', '.join(clean(c) for c in close)}?" if close else "it has reported no metric yet"
            raise NotFound(f"{clean(run.id)} has not reported {clean(key)!r}; {hint}")


def rows_json(key: str, points: list[Point]) -> list[dict[str, Any]]:
    """The objects that `metrics --json` promises; NaN and infinities travel as strings."""
    from engine.wire import to_wire

    return [{"key": key, "step": p.step, "attempt": p.attempt, "t": p.t, "value": to_wire(p.value)} for p in points]


def events(store: Store, run: Run, *, kinds: tuple[str, ...] = (), last: int = 100) -> list[dict[str, Any]]:
    """The newest events, oldest first: {attempt, stream, seq, t, kind, step, version, data}; metrics only when asked for."""
    where = f"kind IN ({', '.join('?' * len(kinds))})" if kinds else "kind NOT IN ('metrics', 'sync')"
    sql = (
        f"SELECT attempt, stream, seq, t, kind, step, version, data FROM event_rows WHERE run_num = ? AND {where}"
        " ORDER BY attempt DESC, t DESC, seq DESC LIMIT ?"
    )
    found = [dict(row) for row in store.rows(sql, (run.num, *kinds, last))]
    for event in found:
        event["data"] = _recorded(event["data"])
    return found[::-1]


def _recorded(text: str) -> Any:
    """What a run wrote; an integer beyond all floats is infinite, in the words of the wire."""
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 300 else "-inf" if digits.startswith("-") else "inf"


def _point(row: Any) -> Point:
    if row["special"] is not None:
        value: Any = float(row["special"])
    else:
        value = row["value"] if row["json"] is None else _recorded(row["json"])
    return Point(row["step"], row["attempt"], row["t"], value)
