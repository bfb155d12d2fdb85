"""An engine without Ray for the tests of molt_tui: `fake_engine.py RUNDIR --attempt N`; runs until it is stopped.

It reports one step, writes a checkpoint mark, and then only answers commands; `deaf` in the run's name lets it ignore
them, and `finishes` lets it complete.
"""

import json
import signal
import sys
import time

from engine import lifeline
from engine.protocol import ControlEvent, EventWriter, MetricsEvent, take_commands
from engine.wire import CHECKPOINT_MARK, EXIT_COMPLETED, EXIT_STOPPED, RunDir, write_atomic

run, number = RunDir(sys.argv[1]), int(sys.argv[3])
name = json.loads(run.meta.read_bytes())["name"]
events = EventWriter(run, run.path.name, number)


def progress(phase: str, **fields) -> None:
    state = {"phase": phase, "step": 1, "version": 1, "max_steps": 5, "last_checkpoint": 1, **fields}
    write_atomic(run.attempt(number) / "progress.json", json.dumps(state).encode())


def end(code: int) -> None:
    progress("stopping", detail="stopped as asked")
    sys.exit(code)


lifeline.hold()
signal.signal(signal.SIGTERM, lambda *_: end(EXIT_STOPPED))
mark = run.checkpoints / "step-1" / CHECKPOINT_MARK
mark.parent.mkdir(parents=True, exist_ok=True)
mark.touch()
events.emit(MetricsEvent, step=1, version=0, metrics={"reward/mean": 0.1 * number})
progress("running")
print(f"attempt {number} ready", flush=True)
while "finishes" not in name:
    for command in take_commands(run) if "deaf" not in name else ():
        ok = command.name != "evaluate"
        events.emit(ControlEvent, step=1, id=command.id, name=command.name, ok=ok, who=command.who, args=command.args,
                    message=f"{command.name} done" if ok else "eval.dataset is empty")  # fmt: skip
        if command.name in ("stop", "stop_after_step"):
            end(EXIT_STOPPED)
        progress("paused" if command.name == "pause" else "running")
    time.sleep(0.02)
end(EXIT_COMPLETED)
