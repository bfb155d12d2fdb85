"""Processes of this machine as /proc shows them: who descends from whom, and how to end them. Standard library only."""

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")
# Every process of an attempt inherits this variable: `<run directory>:<attempt>`.
MARKER = "MOLT_ATTEMPT"
PR_SET_CHILD_SUBREAPER = 36


def _stat(pid: int | str) -> tuple[str, int, int] | None:
    """(state, parent, start time in ticks since boot) of a process; None when it is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def _living() -> Iterator[tuple[int, int]]:
    """(pid, parent) of every process that is not a zombie."""
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (stat := _stat(entry.name)) and stat[0] not in "ZX":
            yield int(entry.name), stat[1]


def descendants(*roots: int) -> set[int]:
    """Living processes below any of `roots`, without these."""
    children: dict[int, list[int]] = {}
    for pid, parent in _living():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found - set(roots)


def marked(is_meant: Callable[[str], bool]) -> set[int]:
    """Living processes of this user whose inherited marker `is_meant` accepts.

    It finds those that left the tree because their parents were killed. A process that overwrote its environment to
    show another title is missed.
    """
    found = set()
    prefix = MARKER.encode() + b"="
    for pid, _ in _living():
        try:
            entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(e.startswith(prefix) and is_meant(os.fsdecode(e[len(prefix) :])) for e in entries):
            found.add(pid)
    return found - {os.getpid()}


def family(is_meant: Callable[[str], bool]) -> set[int]:
    """Processes with such a marker and all their descendants, whatever title those show."""
    roots = marked(is_meant)
    return (roots | descendants(*roots)) - {os.getpid()}


def send(pids: set[int], number: int) -> None:
    """Signal each process; those that are gone meanwhile are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_until_gone(members: Callable[[], set[int]], seconds: float) -> set[int]:
    """SIGKILL `members()` again and again until there are none; returns those that are left after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := members()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


def become_subreaper() -> bool:
    """Adopt orphaned descendants, daemons included, so that they stay findable; False where the system cannot."""
    try:
        return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def identity() -> dict[str, Any]:
    """What tells this process from every other one, on any host and after any reboot."""
    stat = _stat(os.getpid())
    return {"pid": os.getpid(), "start": stat[2] if stat else None, "boot": _boot_id(), "host": socket.gethostname()}


def is_alive(who: dict[str, Any]) -> bool | None:
    """Whether the process with this identity still runs; None when it belongs to another host."""
    if who.get("host") != socket.gethostname():
        return None
    if who.get("boot") != _boot_id():
        return False
    stat = _stat(int(who.get("pid", 0)))
    return stat is not None and stat[0] not in "ZX" and stat[2] == who.get("start")


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
