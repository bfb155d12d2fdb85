import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from molt_tui.store.liveness import BEAT_FRESH_S, BEAT_LOST_S, Beat, observe, process_alive, state_of

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
        ("running", None, False, MOVING, 99 + BEAT_FRESH_S, "running"),  # a moving beat proves life
        ("running", None, False, MOVING, 99.1 + BEAT_FRESH_S, "lost"),
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


def test_process_alive_recognises_its_own_kind(tmp_path):
    run = tmp_path / "20260101-run"
    code = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    host = socket.gethostname()
    assert process_alive(host, child.pid, run) is True
    assert process_alive(host, child.pid, tmp_path / "another") is False  # the number was given away
    assert process_alive("elsewhere", child.pid, run) is None
    child.communicate()
    assert process_alive(host, child.pid, run) is False
    assert process_alive(host, None, run) is None and process_alive(host, 1 << 70, run) is None
    assert process_alive(host, os.getppid(), Path("/nowhere/x-y-z-run")) is False
