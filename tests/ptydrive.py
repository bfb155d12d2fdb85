"""A program on a pseudo-terminal of its own: what it draws, how fast it answers, what it costs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\-_])")


class PtyProgram:
    """Start `command` on a terminal of `size` (columns, rows). Close it with `close`, or use it as a context."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (80, 24)) -> None:
        self.main, side = pty.openpty()
        self._set_size(side, size)
        self.started = time.perf_counter()
        base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "SSH_CONNECTION")}
        self.process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, start_new_session=True,
                                        env={**base, **TERMINAL, **environment})  # fmt: skip
        os.close(side)
        self.output = bytearray()

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.close_terminal()

    def close_terminal(self) -> None:
        """As a lost SSH connection does."""
        if self.main >= 0:
            os.close(self.main)
            self.main = -1

    @staticmethod
    def _set_size(descriptor: int, size: tuple[int, int]) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def resize(self, size: tuple[int, int]) -> None:
        self._set_size(self.main, size)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGWINCH)

    def read(self, timeout_s: float) -> bytes:
        """What comes within the time, at most one chunk; empty when nothing does or the terminal is closed."""
        if not select.select([self.main], [], [], timeout_s)[0]:
            return b""
        try:
            data = os.read(self.main, 1 << 16)
        except OSError:
            time.sleep(min(timeout_s, 0.05))
            return b""
        self.output += data
        return data

    def pump(self, seconds: float) -> int:
        """Read for that long; returns the number of bytes."""
        end, count = time.perf_counter() + seconds, 0
        while (left := end - time.perf_counter()) > 0:
            count += len(self.read(min(left, 0.1)))
        return count

    def wait_for(self, words: str, timeout_s: float = 20.0) -> float:
        """Seconds from the start until the words are drawn anew. AssertionError if they do not come."""
        end, seen = time.perf_counter() + timeout_s, b""
        while time.perf_counter() < end:
            seen += self.read(0.1)
            if words.encode() in ESCAPES.sub(b"", seen):
                return time.perf_counter() - self.started
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.plain()[-500:]}"
        raise AssertionError(f"{words!r} did not come: {self.plain()[-500:]}")

    def plain(self) -> str:
        """Everything drawn so far without escape sequences."""
        return ESCAPES.sub(b"", self.output).decode("utf-8", "replace")

    def send(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    def answer_s(self, keys: str, timeout_s: float = 5.0) -> float:
        """Seconds from a key to the first byte drawn for it."""
        begin = time.perf_counter()
        self.send(keys)
        while time.perf_counter() - begin < timeout_s:
            if self.read(timeout_s):
                return time.perf_counter() - begin
        return timeout_s

    def cpu_s(self) -> float:
        """Processor seconds of the process so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
