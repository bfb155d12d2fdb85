"""The sentence about the time limit."""

from __future__ import annotations

import time
from datetime import datetime

from molt_tui.slurm.forecast import forecast, pace

NOON = datetime(2026, 11, 30, 12).timestamp()


def points(count: int, seconds: float) -> list[tuple[int, float]]:
    return [(step, NOON + step * seconds) for step in range(1, count + 1)]


def test_pace_is_that_of_the_newest_steps():
    assert pace([(1, 0.0)]) is None and pace([]) is None
    assert pace(points(5, 30.0)) == 30.0
    slow_then_fast = [(s, s * 100.0) for s in range(10)] + [(9 + s, 900 + s * 10.0) for s in range(1, 21)]
    assert pace(slow_then_fast, last=20) == 10.0


def test_a_limit_that_comes_too_early():
    found = forecast(points(10, 60), max_steps=100, limit=NOON + 3600, last_checkpoint=5, now=NOON + 600)
    assert found is not None and (found.enough, found.reached) == (False, 60)
    assert found.sentence == "at this pace step 100 at 13:40, limit 13:00 (step 60), last checkpoint 5"


def test_a_limit_that_is_late_enough():
    found = forecast(points(10, 60), max_steps=20, limit=NOON + 3600, last_checkpoint=None, now=NOON + 600)
    assert found is not None and (found.enough, found.reached) == (True, 20)
    assert found.sentence == "at this pace step 20 at 12:20, limit 13:00"


def test_without_limit_or_last_step():
    assert forecast([], max_steps=5, limit=None, last_checkpoint=None, now=time.time()) is None
    found = forecast(points(4, 2), max_steps=None, limit=None, last_checkpoint=2, now=NOON)
    assert found is not None and found.sentence == "2.0 s a step, last checkpoint 2"


def test_another_day_is_named():
    found = forecast(points(4, 3600), max_steps=20, limit=NOON + 86400, last_checkpoint=None, now=NOON)
    assert found is not None and found.sentence == "at this pace step 20 at Tue 08:00, limit Tue 12:00"
