"""The controller's end of the pipe from its supervisor: when the supervisor is gone, the attempt ends too.

Standard library only. Call `hold()` first thing in the controller.
"""

import os
import shutil
import signal
import threading

from engine import processes

PIPE_VARIABLE, SCRATCH_VARIABLE = "MOLT_LIFELINE_FD", "MOLT_SCRATCH"


def hold() -> None:
    """Watch the pipe in a thread and `end` when the supervisor dies; without one, as in a debugger, nothing is watched."""
    number = os.environ.pop(PIPE_VARIABLE, None)
    if number is None:
        return
    descriptor = int(number)
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        end()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def end() -> None:
    """Kill everything that belongs to this attempt, remove its scratch directory, then kill this process."""
    attempt = os.environ.get(processes.MARKER)

    def members() -> set[int]:
        return processes.descendants(os.getpid()) | processes.family(lambda value: value == attempt)

    processes.kill_until_gone(members, 5)
    if SCRATCH_VARIABLE in os.environ:
        shutil.rmtree(os.environ[SCRATCH_VARIABLE], ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
