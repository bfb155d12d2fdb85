"""The way from the command line to the screen; without typer, which takes longer to start than the first paint allows."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from molt_tui.errors import Refused


def has_terminal() -> bool:
    """Whether a full-screen program can be shown and operated."""
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on stderr
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def open_screen(run_id: str | None = None, **options: Any) -> int:
    """Show the Runs screen, or one run's, until the user leaves; returns the exit code. Raises Refused without a terminal."""
    if not has_terminal():
        raise Refused("the screen needs a terminal (TERM is dumb or output is redirected); try `molt-tui runs`")
    gc.disable()  # nothing to collect while modules load; the app turns it on after its first paint
    from molt_tui.tui.app import run_app

    return run_app(run_id, **options)
