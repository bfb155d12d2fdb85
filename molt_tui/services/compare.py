"""Runs and groups side by side: one metric over steps, tokens or time, settings that differ, final metrics."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.metrics import describe
from engine.wire import read_record
from molt_tui.bands import BandPoint, band_by_step, band_on_grid, placed, running_total, spread
from molt_tui.comparison import AXES, DEFAULT_METRIC, MAX_SUBJECTS, Comparison, Several, Subject, ahead
from molt_tui.errors import NotFound, Refused
from molt_tui.services import metrics
from molt_tui.services.runs import Run, find_run, observed, runs_of_group
from molt_tui.store.database import Store
from molt_tui.text import clean

GRID = 240  # places at which runs that share no x are averaged


@dataclass(frozen=True)
class Side:
    """A subject with its runs."""

    subject: Subject
    runs: tuple[Run, ...]


def find_side(store: Store, reference: str) -> Side:
    """A run as everywhere, or a group as `group:NAME`, or by its name where no run has it. Raises NotFound, Refused."""
    if reference.startswith("group:"):
        name = reference.removeprefix("group:")
        runs = tuple(runs_of_group(store, name))
        if not runs:
            raise NotFound(f"no run is in a group {clean(name)!r}; `molt-tui runs` lists groups")
        return Side(Subject(reference, name, tuple(run.id for run in runs)), runs)
    try:
        run = find_run(store, reference)
    except NotFound:
        if reference and runs_of_group(store, reference):
            return find_side(store, f"group:{reference}")
        raise
    return Side(Subject(run.id, run.name, (run.id,)), (run,))


def find_sides(store: Store, references: Sequence[str]) -> list[Side]:
    """In the order given, each once; labels that are shared get the run's id. Raises Refused for too many."""
    found = {side.subject.ref: side for side in (find_side(store, reference) for reference in references)}
    if len(found) > MAX_SUBJECTS:
        raise Refused(f"at most {MAX_SUBJECTS} runs or groups can be compared, these are {len(found)}")
    labels = [side.subject.label for side in found.values()]

    def distinct(side: Side) -> Side:
        subject = side.subject
        if subject.is_group or labels.count(subject.label) == 1:
            return side
        return replace(side, subject=replace(subject, label=subject.ref))

    return [distinct(side) for side in found.values()]


class Comparer:
    """Compares, and keeps what it has read until a run has news: one for a screen that asks again and again."""

    def __init__(self) -> None:
        self._series: dict[tuple[int, str], tuple[float, list[metrics.Point]]] = {}
        self._settings: dict[int, dict[str, Any]] = {}
        self._newest: dict[int, tuple[float, dict[str, metrics.Point]]] = {}
        self._last: tuple[Any, Comparison] | None = None

    def compare(self, store: Store, references: Sequence[str], metric: str = DEFAULT_METRIC, by: str = "step") -> Comparison:
        """Raises NotFound, or Refused for an unknown axis or too many subjects."""
        if by not in AXES:
            raise Refused(f"--by {clean(by)!r}: one of {', '.join(AXES)}")
        sides = find_sides(store, references)
        nums = {run.num for side in sides for run in side.runs}
        marks = {run.num: observed(store, run)[run.id].mark for side in sides for run in side.runs}
        question = ([side.subject for side in sides], metric, by, marks)
        if self._last is not None and self._last[0] == question:
            return self._last[1]
        drawn = [self._curve(store, side, metric, by, marks) for side in sides]
        final = self._final(store, sides, marks)
        best = {
            key: place
            for key, values in final.items()
            if (place := ahead(values, known.better if (known := describe(key)) else None)) is not None
        }
        found = Comparison(tuple(side.subject for side in sides), metric, by, self._differing(sides), final, best,
                           [curve for curve, _ in drawn], [problem for _, problem in drawn if problem])  # fmt: skip
        self._last = (question, found)
        self._series = {place: kept for place, kept in self._series.items() if place[0] in nums}
        self._settings = {num: kept for num, kept in self._settings.items() if num in nums}
        self._newest = {num: kept for num, kept in self._newest.items() if num in nums}
        return found

    def _curve(
        self, store: Store, side: Side, metric: str, by: str, marks: Mapping[int, float]
    ) -> tuple[list[BandPoint], str | None]:
        """The subject's curve, and why it is empty or lacks runs."""
        lines: list[list[tuple[float, float]]] = []
        unplaced = 0
        for run in side.runs:
            points = [(p.step, p.value) for p in self._points(store, run, metric, marks) if isinstance(p.value, float)]
            places = self._places(store, run, by, marks) if by != "step" and points else None
            line = [(float(x), y) for x, y in points] if places is None else placed(points, places)
            unplaced += bool(points) and not line
            lines.append(line)
        lines = [line for line in lines if line]
        label = clean(side.subject.label)
        if not lines and not unplaced:
            return [], f"{label} has not reported {clean(metric)} as a number"
        problem = f"{label}: {unplaced} of {len(side.runs)} runs do not report {by}" if unplaced else None
        if by == "step":
            return band_by_step(lines), problem
        if not side.subject.is_group:
            return [BandPoint(x, y, None, 1) for line in lines for x, y in line], problem
        return band_on_grid(lines, GRID), problem

    def _places(self, store: Store, run: Run, by: str, marks: Mapping[int, float]) -> dict[int, float]:
        """Step -> tokens or seconds spent up to its end; steps that a later attempt repeated count once."""
        if by == "time":
            return running_total(self._numbers(store, run, "time/step", marks))
        rate = dict(self._numbers(store, run, "perf/train_tok_s", marks))
        busy = self._numbers(store, run, "time/forward_backward", marks)
        return running_total((step, rate[step] * seconds) for step, seconds in busy if step in rate)

    def _numbers(self, store: Store, run: Run, key: str, marks: Mapping[int, float]) -> list[tuple[int, float]]:
        return [(p.step, p.value) for p in self._points(store, run, key, marks) if isinstance(p.value, float)]

    def _points(self, store: Store, run: Run, key: str, marks: Mapping[int, float]) -> list[metrics.Point]:
        known = self._series.get((run.num, key))
        if known is None or known[0] != marks[run.num]:
            known = self._series[run.num, key] = (marks[run.num], metrics.series(store, run, key))
        return known[1]

    def _differing(self, sides: Sequence[Side]) -> dict[str, list[Any]]:
        """A flag that an older engine did not have is as it is without being given: its default is no difference to it."""
        from engine.flags import flag_table

        tables = [[self._settings_of(run) for run in side.runs] for side in sides]
        names = dict.fromkeys(name for own in tables for table in own for name in table)
        defaults = {flag: info.default for flag, info in flag_table().items()}
        rows = {}
        for name in names:
            absent = defaults.get(name)
            if len({repr(table.get(name, absent if table else None)) for own in tables for table in own}) > 1:
                rows[name] = [_together([table.get(name) for table in own]) for own in tables]
        return rows

    def _settings_of(self, run: Run) -> dict[str, Any]:
        """Settings never change once they are written; an unreadable run.toml is read again."""
        if not self._settings.get(run.num):
            self._settings[run.num] = settings_of(run)
        return self._settings[run.num]

    def _final(self, store: Store, sides: Sequence[Side], marks: Mapping[int, float]) -> dict[str, list[Any]]:
        for run in (run for side in sides for run in side.runs):
            known = self._newest.get(run.num)
            if known is None or known[0] != marks[run.num]:
                self._newest[run.num] = (marks[run.num], metrics.latest(store, run))
        found = {key for side in sides for run in side.runs for key in self._newest[run.num][1]}
        keys = sorted(found, key=metrics.telling)
        return {key: [self._final_value(side, key) for side in sides] for key in keys}

    def _final_value(self, side: Side, key: str) -> Any:
        values = [self._newest[run.num][1][key].value for run in side.runs if key in self._newest[run.num][1]]
        if not side.subject.is_group:
            return values[0] if values else None
        numbers = [value for value in values if isinstance(value, float)]
        return spread(numbers) if numbers else _together(values) if values else None


def settings_of(run: Run) -> dict[str, Any]:
    """Dotted flag -> value of the run's resolved configuration; empty when run.toml cannot be read."""
    try:
        table = tomllib.loads(read_record(run.directory.run_toml).decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return dict(_leaves(table, ""))


def _together(values: Sequence[Any]) -> Any:
    """The value that all share, or the different ones in order."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different[0] if len(different) == 1 else Several(tuple(different))


def _leaves(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def require_metric(found: Comparison) -> None:
    """Raise NotFound, with what comes near, when no subject has ever reported the metric."""
    if found.metric in found.final:
        return
    import difflib

    close = difflib.get_close_matches(found.metric, list(found.final), 3, 0.4) or list(found.final)[:3]
    hint = f"did you mean {', '.join(map(clean, close))}?" if close else "none of them has reported a metric yet"
    raise NotFound(f"none of them has reported {clean(found.metric)!r}; {hint}")
