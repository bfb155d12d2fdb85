"""What tests of supervised runs share: a supervisor of the fake controller in its own process, and waiting."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.wire import RunDir

FAKE = Path(__file__).with_name("fake_controller.py")
START = """import sys
from engine.supervisor import *
sys.exit(Supervisor(RunDir(sys.argv[1]), sys.argv[3:], float(sys.argv[2])).execute())"""


def supervisor_command(run: RunDir, mode: str, grace: float = 20) -> list[str]:
    return [sys.executable, "-c", START, str(run.path), str(grace), sys.executable, str(FAKE), mode]


def start_supervisor(run: RunDir, mode: str, grace: float = 20) -> subprocess.Popen:
    return subprocess.Popen(supervisor_command(run, mode, grace), start_new_session=True)


def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
