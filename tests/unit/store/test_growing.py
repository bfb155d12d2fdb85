"""Curves read at their ends only are the curves read whole, through resumes that repeat steps; thinned ones as well."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.wire import LogWriter, RunDir, encode_line, write_atomic
from molt_tui.services import metrics, runs
from molt_tui.services.growing import Growing
from molt_tui.store.ingest import ingest
from molt_tui.tui.thinning import ThinCurve
from molt_tui.tui.widgets.braille import thin

RUN = "20270101-000000-growing-0000"


class Writer:
    def __init__(self, root) -> None:
        self.run = RunDir(root / RUN).create()
        write_atomic(self.run.meta, encode_line({"protocol": 1, "run": RUN, "name": "growing", "created": 1.0, "recipe": "demo"}))
        self.step = 0
        self.resume(0)

    def resume(self, back: int) -> None:
        """The next attempt, from some steps before."""
        self.writer = LogWriter(self.run, RUN, self.run.claim_attempt(), "events")
        self.step = max(0, self.step - back)

    def write(self, value: float) -> None:
        self.step += 1
        self.writer.write("metrics", self.step, self.step, metrics={"reward/mean": value})


actions = st.lists(st.floats(allow_nan=False) | st.just(math.inf) | st.integers(1, 5).map(lambda n: ("resume", n)), max_size=30)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(actions, min_size=1, max_size=5), limit=st.sampled_from([4, 8, 16]))
def test_what_grew_is_what_is_there(store, home, tmp_path_factory, chunks, limit):
    writer = Writer(tmp_path_factory.mktemp("runs"))
    growing, curve = Growing(), ThinCurve(limit)
    for chunk in chunks:
        for action in chunk:
            writer.resume(action[1]) if isinstance(action, tuple) else writer.write(action)
        ingest(store, [writer.run.path])
        run = runs.get_run(store, RUN)
        points, changed = growing.points(store, run, "reward/mean")
        assert list(points) == metrics.series(store, run, "reward/mean")
        assert list(growing.points(store, run, "reward/mean", 5)[0]) == metrics.series(store, run, "reward/mean", last=5)
        assert curve.update(points, changed) == thin([(float(p.step), p.value) for p in points], limit)
    with store.write() as connection:
        for table in ("metric_rows", "latest_rows", "event_rows", "cursors"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("DELETE FROM runs")


def test_the_newest_values_of_a_past_step_are_the_ends_of_the_curves_up_to_it(store, golden):
    ingest(store)
    run = runs.list_runs(store)[0]
    for until in (0, 3, 5, 6, 9, 100):
        ends = {key: metrics.series(store, run, key, until=until)[-1:] for key in metrics.keys(store, run)}
        expected = {key: points[0] for key, points in ends.items() if points}
        assert shown(metrics.latest(store, run, until=until)) == shown(expected)
    assert shown(metrics.latest(store, run)) == shown(metrics.latest(store, run, until=9))


def shown(values) -> list[str]:
    """Comparable, NaN included."""
    return sorted(f"{key} {point}" for key, point in values.items())
