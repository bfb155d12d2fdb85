"""`Source` over the services: one database connection per thread, small caches for what does not change.

What needs the configuration tree is imported on use: it takes as long as all the rest of the app's first paint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from molt_tui.facts import percent
from molt_tui.lines import RunLine
from molt_tui.sentences import sentence
from molt_tui.services import health, logs, metrics, runs, steer
from molt_tui.services.growing import Growing
from molt_tui.store.database import Store, open_store
from molt_tui.store.home import Home
from molt_tui.text import clean, log_line
from molt_tui.tui.cluster_answers import ClusterAnswers
from molt_tui.tui.launch_answers import LaunchAnswers
from molt_tui.tui.read_only import changes
from molt_tui.tui.runs_source import RunsSource
from molt_tui.tui.store_data import StoreData
from molt_tui.tui.thinning import ThinCurve
from molt_tui.tui.view import EventLine, Layers, RunView
from molt_tui.tui.widgets.braille import Point
from molt_tui.verdict import Timeline, Verdict, headline, judge

CURVES = ("reward/mean", "loss/policy", "is/masked_frac", "queue/depth", "mismatch/k3_kl", "staleness/mean", "time/step")
HEATMAP_STEPS = 240
EVAL_SUFFIXES = ("/exact_frac", "/score_mean")
EVENTS, LOG_LINES = 200, 500
SHOWN_KINDS = ("phase", "fault", "checkpoint", "control", "alert", "note")


class StoreSource(RunsSource, LaunchAnswers, ClusterAnswers, StoreData):
    """Everything the screens ask, answered from molt.db and the run directories."""

    def __init__(self, home: Home, *, read_only: bool = False) -> None:
        super().__init__()
        self.home, self.read_only = home, read_only
        self._local = threading.local()
        self._curves: dict[tuple[str, str], tuple[Any, ThinCurve, list[Point]]] = {}
        self._growing = Growing()
        self._tails: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._routing: dict[str, tuple[int | None, tuple[Layers, ...]]] = {}
        self._health = health.HealthReader()
        self._shown = ""

    @property
    def store(self) -> Store:
        """This thread's connection; opened again when the file was deleted or rebuilt underneath it."""
        found = getattr(self._local, "store", None)
        if found is None or self._local.file != _identity(self.home.database):
            if found is not None:
                found.close()
            self._local.store = None
            found = self._local.store = open_store(self.home)
            self._local.file = _identity(self.home.database)
        return found

    def fares(self, run: runs.Run, seen: runs.Observed, now: float) -> Verdict:
        """How an active run does, in one verdict."""
        return headline(self._health.facts(self.store, run, seen, now))

    def runs(self) -> Sequence[RunLine]:
        found = super().runs()
        self._health.keep({self._shown, *(line.id for line in found if line.active)})
        return found

    def _show(self, run_id: str) -> None:
        """Whole curves, the log and the routing are kept of one run at a time."""
        if run_id != self._shown:
            self._shown = run_id
            self._growing.keep((run_id,))
            for kept in (self._curves, self._tails, self._routing):
                kept.clear()

    def run(self, run_id: str, points: int, at: int | None = None, metric: str | None = None) -> RunView:
        self._show(run_id)
        run = runs.get_run(self.store, run_id)
        seen, now = runs.observed(self.store, run).get(run.id, health.UNSEEN), time.time()
        facts, newest = self._health.facts(self.store, run, seen, now, at), self._health.newest(self.store, run, seen)
        evals = tuple(key for key in newest if key.startswith("eval/") and key.endswith(EVAL_SUFFIXES))
        curves = {key: self._curve(run, key, newest[key], points)
                  for key in dict.fromkeys((*CURVES, *evals, metric)) if key in newest}  # fmt: skip
        moment = health.moment(self.store, run, at)
        return RunView(
            run_id=run.id, name=clean(run.name), facts=facts, verdicts=judge(facts), version=moment.version,
            attempt=moment.attempt, age_s=_said(run, seen, now), at=at, newest_step=_last_step(run, newest),
            state=clean(run.state), job_id=clean(run.job_id) if run.job_id else None, config=facts.config, curves=curves,
            layers=self._layers(run, newest, at), chosen=metric, events=self._events(run, evals, moment.t), log=self._log(run),
        )  # fmt: skip

    def timeline(self, run_id: str) -> Timeline:
        return health.timeline(self.store, runs.get_run(self.store, run_id), self._health)

    def _layers(self, run: runs.Run, newest: Mapping[str, metrics.Point], at: int | None) -> tuple[Layers, ...]:
        """Routing mismatch per layer over the newest steps, read again only after a new step or for another one."""
        if "routing/layer_mismatch" not in newest:
            return ()
        mark = at if at is not None else newest["routing/layer_mismatch"].step
        known = self._routing.get(run.id)
        if known is None or known[0] != mark:
            known = self._routing[run.id] = (mark, health.layer_mismatch(self.store, run, HEATMAP_STEPS, at))
        return known[1]

    def _curve(self, run: runs.Run, key: str, newest: metrics.Point, points: int) -> list[Point]:
        """A whole curve thinned to the screen, read on only after a new point."""
        place, mark = (run.id, key), (newest.attempt, newest.step, newest.t, points)
        known = self._curves.get(place)
        if known is None or known[0] != mark:
            fresh = known is None or known[1].limit != points
            curve = ThinCurve(points) if fresh else known[1]
            whole, changed = self._growing.points(self.store, run, key)
            known = self._curves[place] = (mark, curve, curve.update(whole, 0 if fresh else changed))
        return known[2]

    def _events(self, run: runs.Run, evals: Sequence[str], until: float | None) -> tuple[EventLine, ...]:
        """Events in words and, between them, what evaluations found; up to a time of the run's own clock."""
        lines = []
        for event in metrics.events(self.store, run, kinds=SHOWN_KINDS, last=EVENTS):
            text = sentence(event["kind"], event["data"], event["step"], event["version"])
            lines.append(EventLine(event["t"], event["kind"], text, event["step"]))
        for key in evals:
            _, name, what = clean(key).split("/")
            for point in metrics.series(self.store, run, key, last=EVENTS) if what == "exact_frac" else ():
                text = f"eval {percent(point.value)} exact at step {point.step}, {name}" if isinstance(point.value, float) else ""
                lines.append(EventLine(point.t, "eval", text, point.step))
        shown = (line for line in lines if line.text and (until is None or (line.t or 0.0) <= until))
        return tuple(sorted(shown, key=lambda line: line.t or 0.0)[-EVENTS:])

    def _log(self, run: runs.Run) -> tuple[str, ...]:
        """The end of the newest log, read again only after it grew."""
        try:
            path = logs.pick(run).path
            found = path.stat()
            mark = (path, found.st_size, found.st_mtime_ns)
            if self._tails.get(run.id, (None,))[0] != mark:
                lines = tuple(log_line(line) for line in logs.tail(path, LOG_LINES)[0])
                self._tails[run.id] = (mark, lines)
        except (OSError, logs.NotFound):
            return ()
        return self._tails[run.id][1]

    @changes
    def control(self, run_id: str, name: str, args: Mapping[str, Any] | None = None) -> str:
        run = runs.get_run(self.store, run_id)
        return clean(steer.steer(self.store, run, name, args))


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file this name stands for now; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _last_step(run: runs.Run, newest: Mapping[str, metrics.Point]) -> int | None:
    """The newest step of which the metrics are there."""
    return newest["time/step"].step if "time/step" in newest else run.step


def _said(run: runs.Run, seen: runs.Observed, now: float) -> float | None:
    """Seconds since the run last said something: its beat while it lives, else what its writers stamped."""
    last = seen.beat if seen.beat is not None and not run.final else run.updated
    return None if last is None else max(0.0, now - last)
