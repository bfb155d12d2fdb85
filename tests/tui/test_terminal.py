"""Manners at the terminal: pace, colour convention, and leaving at once when it is gone."""

import os
import pty
import signal
import subprocess
import sys
import time

from molt_tui.tui.terminal import LOCAL_REFRESH_S, SSH_REFRESH_S, no_color, refresh_interval

CHILD = """
import signal, sys
from molt_tui.tui.terminal import leave_when_gone
leave_when_gone(0)
{ignore}
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_pace_and_colour_follow_the_environment():
    assert refresh_interval({}) == LOCAL_REFRESH_S == 1.0
    assert refresh_interval({"SSH_CONNECTION": "a b"}) == SSH_REFRESH_S
    assert 2 <= SSH_REFRESH_S <= 5
    assert no_color({"NO_COLOR": "1"})
    assert not no_color({"NO_COLOR": ""})


def read_line(descriptor: int) -> None:
    """Wait for the whole line: a terminal closed in the middle of a write fails that write."""
    text = b""
    while not text.endswith(b"ready\r\n"):
        text += os.read(descriptor, 1000)


def ends_with_its_terminal(ignore: str) -> int:
    main, side = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", CHILD.format(ignore=ignore)], stdin=side, stdout=side, stderr=side,
                             start_new_session=True)  # fmt: skip
    os.close(side)
    read_line(main)
    os.close(main)
    started = time.monotonic()
    code = child.wait(5)
    assert time.monotonic() - started < 2
    return code


def test_a_lost_terminal_ends_the_process_even_when_the_signal_is_ignored():
    assert ends_with_its_terminal("") == 129
    assert ends_with_its_terminal("signal.signal(signal.SIGHUP, signal.SIG_IGN)") == 129


def test_a_hangup_signal_ends_the_process():
    main, side = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", CHILD.format(ignore="")], stdin=side, stdout=side, stderr=side)
    read_line(main)
    child.send_signal(signal.SIGHUP)
    assert child.wait(5) == 129
    os.close(main)
    os.close(side)
