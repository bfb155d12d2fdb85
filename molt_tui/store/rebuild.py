"""`molt-tui db rebuild`: the database is a cache, made again from run directories beside the old one and then swapped in."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from molt_tui.errors import StoreError
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import Report, find_runs, ingest


def rebuild(home: Home) -> Report:
    """Build molt.db anew; the old file stays in use until the new one is complete. Raises StoreError."""
    home.create()
    try:
        with _alone(home):
            return _rebuild(home)
    except OSError as error:
        raise StoreError(f"cannot rebuild {home.database}: {error.strerror}") from error


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Two rebuilds at once would swap in each other's unfinished file. Raises StoreError; a killed one holds nothing."""
    with open(os.open(home.path / ".rebuild.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{home.database} is being rebuilt by another molt-tui; wait for it") from error
        except OSError:  # a file system without locks
            pass
        yield


def _rebuild(home: Home) -> Report:
    paths = sorted({*find_runs(home.runs_root), *_known_paths(home.database)})
    fresh = replace(home, path=home.path / "rebuild")
    _remove(fresh.database)
    try:
        with open_store(fresh) as store:
            report = ingest(store, paths)
            store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in ("-wal", "-shm", "-journal"):
            home.database.with_name(home.database.name + suffix).unlink(missing_ok=True)
        os.replace(fresh.database, home.database)
    finally:  # a half-made one must not hold the space that was lacking
        _remove(fresh.database)
    fresh.logs.rmdir()
    fresh.path.rmdir()
    return report


def _known_paths(database: Path) -> list[str]:
    """Run directories outside runs_root that the old database knows, as far as it can still be read."""
    try:
        connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error:
        return []
    try:
        paths = [row[0] for row in connection.execute("SELECT path FROM runs")]
    except sqlite3.Error:
        return []
    finally:
        connection.close()
    return [path for path in paths if os.path.exists(f"{path}/meta.json")]


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
