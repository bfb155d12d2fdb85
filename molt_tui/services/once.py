"""A launch from a form happens once: a second press, a second form, another molt-tui with the very same form is refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from molt_tui.errors import MoltError, Refused

# Long enough for a person who does not know whether the first press arrived.
FRESH_S = 30.0
# A claim of another host, whose processes cannot be seen, is taken as dead after this.
FOREIGN_S = 600.0


@contextmanager
def only_once(folder: Path, content: Any) -> Iterator[list[str]]:
    """Hold the claim on a launch with this content; the caller fills the list with the ids of what it started.

    The claim is on disk before anything starts. Raises Refused while another holds it, and for FRESH_S seconds after. A
    launch that fails gives it back.
    """
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
    path, started = folder / f"{digest}.json", []
    _claim(folder, path)
    try:
        yield started
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # it has started, whatever can be noted of it
        _write(path, "started", started)


def _claim(folder: Path, path: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            _refuse_if_held(_read(path), time.time())
            _write(path, "starting", [])
            _forget_old(folder)
    except OSError as error:
        raise MoltError(f"cannot write a receipt into {folder}: {error.strerror}; nothing was started") from error


def _refuse_if_held(claim: dict[str, Any], now: float) -> None:
    age = now - claim.get("t", 0.0)
    if claim.get("state") == "starting" and _alive(claim, age):
        raise Refused("this very launch is being started right now; wait for its answer")
    if claim.get("state") == "started" and 0 <= age < FRESH_S:
        runs = claim.get("runs") or ["?"]
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        raise Refused(f"the same launch was started {age:.0f} s ago as {runs[0]}{more}; for one more of it give it another"
                      f" name, or wait {FRESH_S - age:.0f} s")  # fmt: skip


def _alive(claim: dict[str, Any], age: float) -> bool:
    if claim.get("host") != socket.gethostname():
        return 0 <= age < FOREIGN_S
    try:
        os.kill(int(claim["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError, TypeError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        sound = isinstance(found, dict) and isinstance(found.get("t"), (int, float)) and isinstance(found.get("runs", []), list)
        return found if sound else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _write(path: Path, state: str, runs: list[str]) -> None:
    record = {"state": state, "t": time.time(), "pid": os.getpid(), "host": socket.gethostname(), "runs": runs}
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(record))
    fresh.replace(path)


def _forget_old(folder: Path) -> None:
    for path in folder.glob("*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > 86400:
                path.unlink()
