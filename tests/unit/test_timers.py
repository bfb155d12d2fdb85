"""Step accounting with a clock that the test moves."""

import pytest

from engine import timers


def test_phases_and_the_share_that_none_covers(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 5.0, 7.0, 10.0])
    monkeypatch.setattr(timers.time, "perf_counter", lambda: next(clock))
    timer = timers.StepTimer()
    with timer.phase("wait_batch"):
        pass
    with timer.phase("forward_backward"):
        pass
    metrics = timer.metrics()
    assert metrics["time/step"] == 10.0
    assert metrics["time/wait_batch"] == 3.0
    assert metrics["time/forward_backward"] == 2.0
    assert metrics["time/unaccounted_frac"] == pytest.approx(0.5)
    assert metrics["time/trainer_idle_frac"] == pytest.approx(0.3)


def test_a_level_adds_up_over_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timers.time, "perf_counter", lambda: now[0])
    running = timers.Level()
    for seconds, level in ((2.0, 3), (5.0, 1), (1.0, 0), (10.0, 0)):
        running.set(level)
        now[0] += seconds
    assert running.integral() == 3 * 2.0 + 1 * 5.0
    running.set(4)
    now[0] += 0.5
    assert (running.level, running.integral()) == (4, 13.0)
