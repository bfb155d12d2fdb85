"""How a run fares: what the verdict rules look at, read from the database. Shared by the command line and the app."""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.wire import read_record
from molt_tui.facts import EVAL_ENDS, LONG_WINDOW, WINDOWED, Facts, Fault, Sample, finite
from molt_tui.services import metrics
from molt_tui.services.growing import Growing
from molt_tui.services.runs import Observed, Run, observed
from molt_tui.store.database import Store
from molt_tui.store.rows import number
from molt_tui.store.runs import read_json
from molt_tui.text import clean
from molt_tui.verdict import Timeline, Verdict, judge

FAULTS, TIMELINE_STEPS = 8, 60
UNSEEN = Observed(None, 0.0)
T = TypeVar("T")


class HealthReader:
    """Facts of runs; what only new events can change is kept until they come. For one thread."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._growing = Growing()

    def keep(self, run_ids: Container[str]) -> None:
        """Drop what was kept of all other runs."""
        self._kept = {place: kept for place, kept in self._kept.items() if place[0] in run_ids}
        self._configs = {run_id: config for run_id, config in self._configs.items() if run_id in run_ids}
        self._growing.keep(run_ids)

    def facts(self, store: Store, run: Run, seen: Observed, now: float, at: int | None = None) -> Facts:
        """What is known of the run now, or was known when step `at` was the newest one.

        A beat that was never seen to move is not old, it is unknown.
        """
        newest = self.newest(store, run, seen, at)
        values = {key: clean(p.value) if isinstance(p.value, str) else p.value for key, p in newest.items()}
        known: dict[str, Any] = {
            "metrics": values, "steps": {key: p.step for key, p in newest.items()}, "max_steps": run.max_steps,
            "history": self._keep(run, f"history {at}", seen, lambda: self._history(store, run, newest, at)),
            "config": self.config(run), "faults": self._keep(run, f"faults {at}", seen, lambda: faults(store, run, at)),
        }  # fmt: skip
        if at is not None:
            return Facts("running", step=at, last_checkpoint=checkpoint_before(store, run, at), **known)
        beat_age = None if seen.beat is None else max(0.0, now - seen.beat)
        return Facts(
            clean(run.state), clean(run.detail or run.last_error or ""), step_now(run, newest), beat_age_s=beat_age,
            step_age_s=_step_age(run, newest.get("time/step")), time_left_s=time_left(store, run, now),
            last_checkpoint=run.last_checkpoint, **known,
        )  # fmt: skip

    def _history(self, store: Store, run: Run, newest: Mapping[str, Any], at: int | None) -> dict[str, list[Sample]]:
        """The last values of what the rules look back on, oldest first."""
        evals = {key: LONG_WINDOW for key in newest if key.startswith("eval/") and key.endswith(EVAL_ENDS)}
        found = {}
        for key, count in {**WINDOWED, **evals}.items():
            if key not in newest:
                continue
            if at is None:
                points, _ = self._growing.points(store, run, key, count)
            else:
                points = metrics.series(store, run, key, last=count, until=at)
            found[key] = [(p.step, p.value) for p in points if isinstance(p.value, float)]
        return found

    def newest(self, store: Store, run: Run, seen: Observed, at: int | None = None) -> dict[str, metrics.Point]:
        """The newest value of every metric, up to step `at`."""
        return self._keep(run, f"newest {at}", seen, lambda: metrics.latest(store, run, until=at))

    def config(self, run: Run) -> Mapping[str, Any]:
        """The run's resolved configuration, flat; it never changes once written."""
        if run.id not in self._configs:
            try:
                self._configs[run.id] = dict(_flat(tomllib.loads(read_record(run.directory.run_toml).decode())))
            except (OSError, ValueError, RecursionError):
                return {}
        return self._configs[run.id]

    def _keep(self, run: Run, what: str, seen: Observed, read: Callable[[], T]) -> T:
        """What was read for this run, read again after new events or for another step."""
        kind, _, at = what.partition(" ")
        place, mark = (run.id, kind if at == "None" else f"past {kind}"), (seen.mark, at)
        known = self._kept.get(place)
        if known is None or known[0] != mark:
            known = self._kept[place] = (mark, read())
        return known[1]


def findings(store: Store, run: Run, reader: HealthReader | None = None, at: int | None = None) -> list[Verdict]:
    """Every verdict on a run now, or when step `at` was the newest one; most urgent first."""
    seen = observed(store, run).get(run.id, UNSEEN)
    return judge((reader or HealthReader()).facts(store, run, seen, time.time(), at))


def as_json(found: list[Verdict]) -> list[dict[str, str]]:
    """The objects of `alerts` in `runs --json` and `show --json`: what a person should look at."""
    return [{"rule": v.rule, "level": v.level, "text": v.text, "action": v.action} for v in found if v.alarming]


def faults(store: Store, run: Run, at: int | None = None) -> list[Fault]:
    """The newest faults of the newest attempt, oldest first."""
    found = [e for e in metrics.events(store, run, kinds=("fault",), last=FAULTS) if e["attempt"] == run.attempt]
    return [
        Fault(clean(e["data"].get("what", "fault")), clean(e["data"].get("detail", "")), e["step"], bool(e["data"].get("fatal")))
        for e in found if at is None or (e["step"] or 0) <= at
    ]  # fmt: skip


def checkpoint_before(store: Store, run: Run, at: int) -> int | None:
    """The last step up to `at` that was saved."""
    sql = "SELECT max(step) AS step FROM event_rows WHERE run_num = ? AND kind = 'checkpoint' AND step <= ?"
    return store.rows(sql, (run.num, at))[0]["step"]


def timeline(store: Store, run: Run, reader: HealthReader) -> Timeline:
    """The alerts of a run over its whole life, judged at no more than TIMELINE_STEPS of its steps."""
    steps = [p.step for p in metrics.series(store, run, "time/step")]
    stride = -(-len(steps) // TIMELINE_STEPS) or 1
    chosen = tuple(steps[::-1][::stride][::-1])  # the last one always
    found = [{v.rule: v.level for v in judge(reader.facts(store, run, UNSEEN, 0.0, at)) if v.alarming} for at in chosen]
    rules = dict.fromkeys(rule for levels in found for rule in levels)
    return Timeline(chosen, {rule: tuple(levels.get(rule) for levels in found) for rule in rules})


def step_now(run: Run, newest: Mapping[str, metrics.Point]) -> int | None:
    """The step that the run is at: the newest of this attempt that reported metrics, which the status follows a beat later."""
    done = newest.get("time/step")
    return run.step if run.final or done is None or done.attempt != run.attempt else done.step


@dataclass(frozen=True)
class Moment:
    """Version and attempt at a step, and when by the run's own clock; `t` is None for the present."""

    version: int | None
    attempt: int | None
    t: float | None = None


def moment(store: Store, run: Run, at: int | None) -> Moment:
    """The moment at which step `at` was done; the present without one, or when that step is not known."""
    points = metrics.series(store, run, "time/step", last=1, until=at) if at is not None else []
    if not points or points[0].t is None:
        return Moment(_newest_version(store, run), run.attempt)
    sql = "SELECT version FROM event_rows WHERE run_num = ? AND kind = 'metrics' AND t <= ? ORDER BY t DESC LIMIT 1"
    found = store.rows(sql, (run.num, points[0].t))
    return Moment(found[0]["version"] if found else None, points[0].attempt, points[0].t)


def _newest_version(store: Store, run: Run) -> int | None:
    """By the newest step of this attempt, which the status follows a beat later."""
    sql = "SELECT version FROM event_rows WHERE run_num = ? AND kind = 'metrics' AND attempt = ? ORDER BY t DESC LIMIT 1"
    known = [run.version, *(row["version"] for row in store.rows(sql, (run.num, run.attempt)))]
    return max((version for version in known if version is not None), default=None)


def layer_mismatch(store: Store, run: Run, last: int, at: int | None = None) -> tuple[tuple[int, tuple[float, ...] | None], ...]:
    """(step, routing mismatch per MoE layer) of the newest steps up to `at`; None where the step reported none."""
    steps = [p.step for p in metrics.series(store, run, "time/step", last=last, until=at)]
    lists = {p.step: p.value for p in metrics.series(store, run, "routing/layer_mismatch", last=last, until=at)}
    return tuple((step, _shares(lists.get(step))) for step in steps)


def _shares(value: Any) -> tuple[float, ...] | None:
    """A list from the wire as numbers; what is none, or not finite, becomes NaN."""
    if not isinstance(value, list) or not value:
        return None
    return tuple(math.nan if (share := number(v)) is None else share for v in value)


def time_left(store: Store, run: Run, now: float) -> float | None:
    """Seconds until the job's time limit, by Slurm's last answer, else as the supervisor said with its last beat."""
    if run.state != "running":
        return None
    jobs = store.rows("SELECT end FROM slurm_jobs WHERE run_num = ?", (run.num,))
    if jobs and jobs[0]["end"] is not None:
        return max(0.0, jobs[0]["end"] - now)
    return finite((read_json(run.directory.status) or {}).get("time_left_s"))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, clean(value) if isinstance(value, str) else value


def _step_age(run: Run, step: metrics.Point | None) -> float | None:
    """Between the newest step of this attempt and the run's newest word; both times are the run's own."""
    if step is None or step.attempt != run.attempt or step.t is None or run.updated is None:
        return None
    return max(0.0, run.updated - step.t)
