"""A controller without Ray for the supervisor's tests: `fake_controller.py MODE RUNDIR --attempt N`."""

import json
import os
import signal
import sys
import time

from engine import lifeline
from engine.wire import EXIT_STOPPED, RunDir, write_atomic

mode, run = sys.argv[1], RunDir(sys.argv[2])
folder = run.attempt(int(sys.argv[4]))


def progress(**fields) -> None:
    write_atomic(folder / "progress.json", json.dumps(fields).encode())


def daemon() -> None:
    """An orphan in its own session, as Ray's daemons are after their parent died."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (folder / "daemon.pid").write_text(str(os.getpid()))
            signal.pause()
        os._exit(0)


def checkpoint_and_stop(*_) -> None:
    mark = run.checkpoints / "step-000002" / "COMPLETE"
    mark.parent.mkdir(parents=True)
    mark.touch()
    progress(phase="stopping", step=2, version=2, last_checkpoint=2, detail="stopped as asked")
    sys.exit(EXIT_STOPPED)


def forever() -> None:
    (folder / "ready").touch()
    while True:
        time.sleep(60)


lifeline.hold()
(folder / "scratch").write_text(os.environ["MOLT_SCRATCH"])
progress(phase="running", step=1, version=1, max_steps=5)
if mode == "stops":
    signal.signal(signal.SIGTERM, checkpoint_and_stop)
    forever()
if mode == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
if mode == "raises":
    raise RuntimeError("no memory for\x1b the model")
if mode == "reports":
    progress(phase="stopping", step=3, version=3, error="RunFailed: too many rollouts failed")
    sys.exit(1)
if mode in ("daemon", "daemon_and_wait"):
    daemon()
    while not (folder / "daemon.pid").exists():
        time.sleep(0.01)
if mode == "daemon_and_wait":
    forever()
progress(phase="stopping", step=5, version=5, max_steps=5)
