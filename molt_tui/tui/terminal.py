"""The terminal's life and manners: refresh pace, and leaving at once when it is gone."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Mapping

LOCAL_REFRESH_S, SSH_REFRESH_S = 1.0, 3.0
HUNG_UP, TERMINATED = 129, 143


def refresh_interval(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds between looks at the runs: slower over SSH, where every redraw is traffic."""
    return SSH_REFRESH_S if environment.get("SSH_CONNECTION") else LOCAL_REFRESH_S


def no_color(environment: Mapping[str, str] = os.environ) -> bool:
    """The no-color convention: set and not empty."""
    return bool(environment.get("NO_COLOR"))


def prepare_environment() -> None:
    """Settings that Textual reads while it is imported: nothing moves by itself."""
    for name, value in (("TEXTUAL_ANIMATIONS", "none"), ("TEXTUAL_SMOOTH_SCROLL", "0")):
        os.environ.setdefault(name, value)
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]  # Textual takes an empty value for a set one


def leave_when_gone(descriptor: int) -> None:
    """End this process when the terminal hangs up, even where SIGHUP is ignored (nohup); nothing of a run depends on it.

    poll() with no requested events sleeps until the kernel reports a hang-up or an error.
    """
    signal.signal(signal.SIGHUP, lambda *_: os._exit(HUNG_UP))

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)
        poll.poll()
        os._exit(HUNG_UP)

    threading.Thread(target=watch, name="molt-terminal", daemon=True).start()
