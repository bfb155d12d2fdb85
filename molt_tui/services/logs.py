"""Log files of a run: list, tail and follow, without ever holding a whole file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from molt_tui.errors import NotFound
from molt_tui.services.runs import Run

TAIL_BYTES = 1 << 20


@dataclass(frozen=True)
class LogFile:
    attempt: int
    name: str
    path: Path
    size: int


def files(run: Run) -> list[LogFile]:
    """Every log file of every attempt, oldest attempt first."""
    found = []
    for attempt in run.directory.attempt_numbers():
        folder = run.directory.attempt(attempt) / "logs"
        for path in sorted(folder.glob("**/*")) if folder.is_dir() else []:
            if path.is_file():
                found.append(LogFile(attempt, str(path.relative_to(folder)), path, path.stat().st_size))
    return found


def pick(run: Run, *, attempt: int | None = None, name: str | None = None) -> LogFile:
    """The log that was asked for: of the newest attempt and the controller unless said otherwise; raises NotFound."""
    known = files(run)
    newest = max((f.attempt for f in known), default=None)
    wanted = newest if attempt is None else attempt
    here = [f for f in known if f.attempt == wanted]
    if name is not None:
        exact = [f for f in here if f.name == name or Path(f.name).stem == name]
        if not exact:
            names = ", ".join(f.name for f in here) or "none"
            raise NotFound(f"{run.id} has no log {name!r} in attempt {wanted}; it has {names}")
        return exact[0]
    if not here:
        raise NotFound(f"{run.id} has no log of attempt {wanted}" if wanted else f"{run.id} has no log yet")
    preferred = [f for f in here if Path(f.name).stem in ("controller", "engine")]
    return (preferred or here)[0]


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """The last `lines` lines within the last MiB, and the offset behind them; undecodable bytes are replaced."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(size - TAIL_BYTES, 0)
        file.seek(start)
        data = file.read(size - start)
    found = data.decode("utf-8", "replace").splitlines()
    if start and found:
        found = found[1:]  # cut in the middle
    return (found[-lines:] if lines else []), start + len(data)


def follow(path: Path, offset: int, *, done: Callable[[], bool], pause: float = 0.5) -> Iterator[str]:
    """New complete lines as they are written, until `done()` and nothing more comes; starts again when the file shrank."""
    rest = b""
    while True:
        ending = done()
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset, rest = 0, b""
            file.seek(offset)
            data = file.read(TAIL_BYTES)
        offset += len(data)
        *complete, rest = (rest + data).split(b"\n")
        for line in complete:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if not data and ending:
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        if not data:
            time.sleep(pause)
