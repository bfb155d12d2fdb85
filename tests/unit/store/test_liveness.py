import pytest

from engine import processes
from molt_tui.store.liveness import BEAT_LOST_S, Beat, observe, process_alive, state_of

STILL, MOVING = Beat(7, 0.0), Beat(7, 0.0, 99.0)


@pytest.mark.parametrize(
    ("phase", "exit_reason", "alive", "beat", "now", "state"),
    [
        (None, None, None, None, 0, "draft"),
        ("queued", None, None, Beat(None, 0.0), 1e6, "queued"),
        ("starting", None, True, STILL, 1, "starting"),
        ("running", None, True, STILL, 1, "running"),
        ("running", None, True, STILL, 1e6, "running"),  # the supervisor exists: hung, not lost
        ("running", None, False, STILL, 1, "lost"),
        ("running", None, False, MOVING, 99.1, "lost"),
        ("running", None, None, MOVING, 99 + BEAT_LOST_S, "running"),
        ("paused", None, None, STILL, BEAT_LOST_S, "paused"),
        ("paused", None, None, STILL, BEAT_LOST_S + 1, "lost"),
        ("running", "crashed", False, STILL, 1, "failed"),
        ("stopping", "cancelled", True, MOVING, 100, "cancelled"),
        ("completed", None, None, STILL, 1e6, "completed"),
        ("something new", None, True, STILL, 1, "running"),
    ],
)
def test_state(phase, exit_reason, alive, beat, now, state):
    assert state_of(phase=phase, exit_reason=exit_reason, alive=alive, beat=beat, now=now)[0] == state


def test_a_beat_lives_when_it_changes_on_the_readers_clock():
    first = observe(None, 5, 10.0)
    assert first == Beat(5, 10.0) and observe(first, 5, 20.0) == first
    assert observe(first, 6, 20.0) == Beat(6, 20.0, 20.0)
    assert observe(first, 2, 20.0).changed == 20.0  # a new attempt counts from 0 again
    assert observe(first, None, 20.0) == first


def test_process_alive_needs_an_identity():
    me = processes.identity()
    assert process_alive(me) is True
    assert process_alive({**me, "start": -1}) is False  # the number was given to another process
    assert process_alive({**me, "host": "elsewhere"}) is None
    assert process_alive({}) is None and process_alive({"pid": "x", "host": 3}) is None
