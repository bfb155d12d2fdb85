"""What this program itself costs: processor, memory, bytes to the terminal, calls to the scheduler."""

from __future__ import annotations

import contextlib
import os
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass

from textual.drivers.linux_driver import LinuxDriver

from molt_tui import spawn

SCHEDULER = ("squeue", "sinfo", "sacct", "scontrol", "sbatch", "scancel", "sacctmgr")


class CountingDriver(LinuxDriver):
    """The terminal, with a count of the bytes sent to it."""

    sent = 0

    def write(self, data: str) -> None:
        CountingDriver.sent += len(data) if data.isascii() else len(data.encode("utf-8", "replace"))
        super().write(data)

    def stop_application_mode(self) -> None:
        """Ctrl+s holds the output again only once all of it is out: the program would wait for it, and not end."""
        before = self.attrs_before
        if before is not None:
            self.attrs_before = [before[0] & ~termios.IXON, *before[1:]]
        super().stop_application_mode()
        self.attrs_before = before

    def close(self) -> None:
        super().close()
        if self.attrs_before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)


@dataclass(frozen=True)
class Reading:
    """Totals of this process at one moment."""

    at: float
    cpu_s: float
    sent: int
    calls: Mapping[str, int]

    @classmethod
    def now(cls) -> Reading:
        return cls(time.monotonic(), time.process_time(), CountingDriver.sent, dict(spawn.calls))


def memory_mb() -> float | None:
    """Resident memory of this process in MB; None where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        return None


def in_words(start: Reading, now: Reading, refresh_s: float) -> str:
    """One line for a person: rates since `start`."""
    seconds = max(now.at - start.at, 1e-6)
    memory = memory_mb()
    calls = {name: now.calls.get(name, 0) - start.calls.get(name, 0) for name in SCHEDULER}
    asked = ", ".join(f"{name} {count}" for name, count in calls.items() if count) or "none"
    parts = [
        f"{100 * (now.cpu_s - start.cpu_s) / seconds:.1f} % of a core",
        f"{(now.sent - start.sent) / seconds / 1e3:.1f} kB/s to the terminal",
        f"{memory:.0f} MB of memory" if memory is not None else "",
        f"scheduler calls: {asked} ({60 * sum(calls.values()) / seconds:.1f} a minute)",
        f"a look every {refresh_s:g} s",
    ]
    minutes = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"molt-tui itself, over {minutes}: " + "; ".join(part for part in parts if part)
