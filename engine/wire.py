"""Bytes of the run directory: names, atomic writes, append-only logs. Standard library only, so that the supervisor
starts at once and survives a broken environment. The records themselves are modelled in protocol.py.
"""

import errno
import json
import math
import os
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

PROTOCOL = 1
ROTATE_BYTES = 32 * 1024 * 1024
LINE_BYTES = 64 * 1024 * 1024  # a longer line is damage: it is skipped, never held
RECORD_BYTES = 16 * 1024 * 1024
DIR_MODE, FILE_MODE = 0o700, 0o600
OWNER_FILE = "supervisor.json"
CHECKPOINT_MARK = "COMPLETE"
# How the process of an attempt ends: all steps done, an error, a stop command after its checkpoint.
EXIT_COMPLETED, EXIT_FAILED, EXIT_STOPPED = 0, 1, 3


def to_wire(value: Any) -> Any:
    """A JSON-safe copy: NaN and infinities become "nan", "inf", "-inf"; numpy scalars become numbers."""
    if isinstance(value, dict):
        return {str(k): to_wire(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_wire(v) for v in value]
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        return to_wire(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def encode_line(record: dict[str, Any]) -> bytes:
    """One JSON line, ASCII only, no bare NaN."""
    return json.dumps(to_wire(record), ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` in one step; a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_regular(path: str | Path) -> BinaryIO:
    """Open for reading without ever waiting; what is no regular file (a FIFO, a device, a folder) counts as missing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_record(path: str | Path) -> bytes:
    """All bytes of a small file. Raises OSError, also for one that is larger than any record."""
    with open_regular(path) as file:
        data = file.read(RECORD_BYTES + 1)
    if len(data) > RECORD_BYTES:
        raise OSError(errno.EFBIG, "the file is too large", str(path))
    return data


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one line with a single write; safe beside other appenders of the same file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        os.write(descriptor, encode_line(record))
    finally:
        os.close(descriptor)


class RunDir:
    """Names of everything in a run directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.run_toml = self.path / "run.toml"
        self.meta = self.path / "meta.json"
        self.status = self.path / "status.json"
        self.agent = self.path / "agent"
        self.notes = self.path / "notes.jsonl"
        self.control = self.path / "control"
        self.rollouts = self.path / "rollouts"
        self.checkpoints = self.path / "checkpoints"
        self.attempts = self.path / "attempts"

    def create(self) -> Self:
        """Make the directories; private to the owner."""
        for folder in (self.path, self.agent, self.control, self.rollouts, self.attempts):
            folder.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        return self

    def attempt(self, number: int) -> Path:
        return self.attempts / str(number)

    def attempt_numbers(self) -> list[int]:
        if not self.attempts.is_dir():
            return []
        return sorted(int(p.name) for p in self.attempts.iterdir() if p.name.isascii() and p.name.isdigit())

    def claim_attempt(self, owner: dict[str, Any] | None = None) -> int:
        """Claim the next attempt number; `owner` says who supervises it.

        A prepared folder is renamed to its number, which fails when that number is taken: two claimants never get the
        same one, and nobody sees an attempt without its owner.
        """
        prepared = self.attempts / f".claim-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        for folder in (prepared, prepared / "events", prepared / "logs"):
            folder.mkdir(mode=DIR_MODE)
        if owner is not None:
            write_atomic(prepared / OWNER_FILE, encode_line(owner))
        number = (self.attempt_numbers() or [0])[-1] + 1
        while True:
            try:
                prepared.rename(self.attempt(number))
                return number
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                number += 1


class LogWriter:
    """Appends lines of one writer to attempts/<n>/<stream>/, rotating by size.

    The engine's stream is "events"; the supervisor, which may outlive it, writes "supervisor" beside it, so that no file
    ever has two writers. `seq` counts within (attempt, stream).
    """

    def __init__(self, run: RunDir, run_id: str, attempt: int, stream: str = "events", rotate: int = ROTATE_BYTES) -> None:
        self.run_id, self.attempt, self.rotate = run_id, attempt, rotate
        self.folder = run.attempt(attempt) / stream
        self.folder.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        self.seq = 0
        self._index = 0
        self._descriptor = self._open()

    def _open(self) -> int:
        self._size, self._torn = 0, False
        return os.open(self.folder / f"{self._index:06d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)

    def write(self, kind: str, step: int | None = None, version: int | None = None, **fields: Any) -> None:
        """Append one event; raises OSError when the file system refuses it."""
        head = {"protocol": PROTOCOL, "run": self.run_id, "attempt": self.attempt, "seq": self.seq, "t": time.time()}
        where = {k: v for k, v in (("step", step), ("version", version)) if v is not None}
        line = encode_line({**head, "kind": kind, **where, **fields})
        if self._size and self._size + len(line) > self.rotate:
            os.close(self._descriptor)
            self._index += 1
            self._descriptor = self._open()
        if self._torn:
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, "the file system took only a part of an event")
        self.seq += 1

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class Cursor:
    """Where a reader stands: file index and byte offset within it, for one stream of one attempt."""

    index: int = 0
    offset: int = 0


@dataclass
class EventReader:
    """Incremental reader of one attempt's stream; every complete new line is given once, a torn last line waits."""

    folder: Path
    cursor: Cursor = field(default_factory=Cursor)
    bad_lines: int = 0

    def poll(self, limit_bytes: int = 64 * 1024 * 1024) -> Iterator[dict[str, Any]]:
        """Every new event; the cursor may be ahead of the event given, use `batches` to store both together."""
        for batch in self.batches(limit_bytes):
            yield from batch

    def batches(self, limit_bytes: int = 4 * 1024 * 1024) -> Iterator[list[dict[str, Any]]]:
        """New events in lists; when a list is given the cursor stands exactly behind its last line."""
        limit = limit_bytes
        while True:
            rotated = (self.folder / f"{self.cursor.index + 1:06d}.jsonl").exists()
            try:
                with open_regular(self.folder / f"{self.cursor.index:06d}.jsonl") as file:
                    file.seek(self.cursor.offset)
                    data = file.read(limit)
            except FileNotFoundError:
                return
            end = data.rfind(b"\n") + 1
            self.cursor.offset += end
            if end:
                yield self._parse(data[:end])
            if len(data) == limit and not end and limit >= LINE_BYTES:
                self.cursor.offset += limit
                yield []
            elif len(data) == limit:
                limit = limit_bytes if end else 2 * limit  # a line longer than the read needs a longer read
            elif not rotated:
                return
            else:
                self.cursor = Cursor(self.cursor.index + 1, 0)

    def _parse(self, lines: bytes) -> list[dict[str, Any]]:
        records = []
        for line in lines.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and isinstance(record.get("kind"), str):
                records.append(record)
            else:
                self.bad_lines += 1
        return records
