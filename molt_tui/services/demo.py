"""Starts the playing of a recorded run, detached like a real one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from molt_tui import spawn
from molt_tui.errors import MoltError, Refused
from molt_tui.scenarios.archive import load
from molt_tui.scenarios.player import prepare
from molt_tui.services.launch import last_line
from molt_tui.store.home import Home

START_S = 20.0


def start(home: Home, scenario: str, speed: float | None = None, *, hold_s: float | None = None) -> str:
    """Play a scenario (shipped name or file) into a fresh run directory; returns its run id once it has begun.

    `speed`: recorded seconds per second; None lets it last about a minute. `hold_s`: how long a recording without an end goes
    on after it; None: ten minutes. Raises NotFound, Refused, MoltError.
    """
    from engine.rundir import new_run_id

    if speed is not None and not 0 < speed < float("inf"):
        raise Refused(f"--speed must be above 0, got {speed:g}")
    found = load(scenario)
    run_id = new_run_id(f"demo-{found.name}")
    command = ["molt-tui", "demo", "--scenario", found.name]
    run = prepare(found, home.runs_root, run_id, now=time.time(), command=command)
    source = str(Path(scenario).resolve()) if os.path.isfile(scenario) else scenario
    process = spawn.start_player(run.path, source, {"speed": speed, "hold": hold_s})
    deadline = time.monotonic() + START_S
    while not run.attempt_numbers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise MoltError(f"{run_id}: the player did not begin: {last_line(run.path / spawn.PLAYER_LOG)}")
        time.sleep(0.05)
    return run_id
