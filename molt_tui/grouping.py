"""Lists of runs: groups fold into one entry, entries are sorted, open groups unfold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from molt_tui.bands import Spread, spread
from molt_tui.lines import RunLine

GROUP_KEY = "\x1fgroup "  # begins the key of a group; no run id holds a control character
TROUBLE = {"failed": 1, "lost": 1, "timeout": 2, "preempted": 2, "paused": 4, "stopping": 4, "running": 5, "starting": 6,
           "queued": 7, "draft": 8, "cancelled": 9, "completed": 10}  # fmt: skip


@dataclass(frozen=True)
class GroupLine:
    """Runs that were started together, folded into one line. `runs` are those that the filter lets through."""

    name: str
    runs: tuple[RunLine, ...]

    @property
    def key(self) -> str:
        return GROUP_KEY + self.name

    @cached_property
    def worst(self) -> RunLine:
        """The run that a person should look at first."""
        return min(self.runs, key=trouble)

    @cached_property
    def states(self) -> list[tuple[str, int]]:
        """(state, number of runs), what needs a look first."""
        return sorted(Counter(run.state for run in self.runs).items(), key=lambda item: TROUBLE.get(item[0], 3))

    @cached_property
    def reward(self) -> Spread | None:
        return spread(run.reward for run in self.runs if run.reward is not None)

    @property
    def best(self) -> RunLine | None:
        known = [run for run in self.runs if run.reward is not None and isfinite(run.reward)]
        return max(known, key=lambda run: run.reward or 0.0, default=None)

    @property
    def alarming(self) -> bool:
        return any(run.alarming for run in self.runs)


Entry = RunLine | GroupLine


def trouble(run: RunLine) -> int:
    """How urgently a run needs a look; less is more."""
    if run.alarming:
        return 0 if run.verdict is not None and run.verdict.level == "critical" else 3
    return TROUBLE.get(run.state, 3)


def fold(lines: Iterable[RunLine]) -> list[Entry]:
    """Runs of a group with at least two of them here become one entry."""
    members: dict[str, list[RunLine]] = {}
    entries: list[Entry] = []
    for line in lines:
        if line.group is None:
            entries.append(line)
        else:
            members.setdefault(line.group, []).append(line)
    for name, runs in members.items():
        entries.append(GroupLine(name, tuple(runs)) if len(runs) > 1 else runs[0])
    return entries


@dataclass(frozen=True)
class Order:
    """A way to sort: value of a run, whether the largest comes first, and how a group's value follows from its runs'."""

    value: Callable[[RunLine], Any]
    largest_first: bool
    of_group: Callable[[Iterable[Any]], Any] = max


def _number(value: float | None) -> float:
    return value if value is not None and isfinite(value) else float("-inf")


ORDERS: dict[str, Order] = {
    "newest": Order(lambda r: r.created, True),
    "state": Order(trouble, False, min),
    "name": Order(lambda r: r.name.casefold(), False, min),
    "step": Order(lambda r: -1 if r.step is None else r.step, True),
    "reward": Order(lambda r: _number(r.reward), True),
    "age": Order(lambda r: -_said_at(r), False, min),
    "attempts": Order(lambda r: r.attempts, True),
    "job": Order(lambda r: (r.job_id is None, len(r.job_id or ""), r.job_id or ""), False, min),
}


def _said_at(run: RunLine) -> float:
    """When the run last said something, comparable between lines; the age itself where a line stands still."""
    return float("-inf") if run.age_s is None else (run.as_of or 0.0) - run.age_s


def arrange(entries: Iterable[Entry], order: str, flipped: bool) -> list[Entry]:
    """Sorted; equals stay newest first, so that a refresh moves nothing without a reason."""
    how = ORDERS[order]

    def value(entry: Entry) -> Any:
        if isinstance(entry, RunLine):
            return how.value(entry)
        if order == "name":
            return entry.name.casefold()
        if order == "reward":
            return _number(entry.reward.mean) if entry.reward is not None else float("-inf")
        return how.of_group(map(how.value, entry.runs))

    newest = sorted(entries, key=_newest, reverse=True)
    return newest if order == "newest" and not flipped else sorted(newest, key=value, reverse=how.largest_first != flipped)


def _newest(entry: Entry) -> tuple[float, str]:
    if isinstance(entry, RunLine):
        return entry.created, entry.id
    return max((run.created, run.id) for run in entry.runs)


def unfolded(entries: Iterable[Entry], opened: set[str], order: str, flipped: bool) -> list[tuple[str, Entry, bool]]:
    """(key, entry, member) per row: the runs of an open group follow it."""
    rows: list[tuple[str, Entry, bool]] = []
    for entry in entries:
        if isinstance(entry, RunLine):
            rows.append((entry.id, entry, False))
            continue
        rows.append((entry.key, entry, False))
        if entry.name in opened:
            rows += [(run.id, run, True) for run in arrange(entry.runs, order, flipped) if isinstance(run, RunLine)]
    return rows
