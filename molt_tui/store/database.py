"""Opening the database: one writer connection or many read-only ones; every failure is one line."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molt_tui.errors import NotFound, NotWritable, StoreError
from molt_tui.store.home import Home, journal_mode

SCHEMA_VERSION = 4
BUSY_SECONDS = 10.0


class Store:
    """One connection to molt.db. A connection belongs to the thread that opened it: open one per thread."""

    def __init__(self, home: Home, connection: sqlite3.Connection) -> None:
        self.home, self.connection = home, connection

    def rows(self, sql: str, parameters: tuple | dict = ()) -> list[sqlite3.Row]:
        """All rows of a statement; raises StoreError, and NotFound for a parameter that nothing in a database can equal."""
        try:
            with store_errors(self.home.database):
                return self.connection.execute(sql, parameters).fetchall()
        except UnicodeEncodeError as error:
            raise NotFound("nothing here is called so: it is not Unicode text") from error
        except OverflowError as error:
            raise NotFound("nothing here has so large a number") from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One short transaction that takes the write lock at once, so that two processes queue instead of failing."""
        with store_errors(self.home.database), transaction(self.connection):
            yield self.connection

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything inside or nothing of it, with the write lock from the start."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into one line that says what to do."""
    try:
        yield
    except MemoryError as error:  # a query at its limit shares SQLite's memory with everybody else
        raise StoreError(f"{path}: out of memory; try again") from error
    except sqlite3.OperationalError as error:
        text, kind = str(error), StoreError
        if "locked" in text or "busy" in text:
            hint = "another molt-tui is writing; try again, or end it"
        elif "readonly" in text or "read-only" in text or "unable to open" in text:
            kind, hint = NotWritable, "make the folder writable or set MOLT_TUI_HOME"
        elif "full" in text or "disk I/O" in text:
            kind, hint = NotWritable, "free some space or set MOLT_TUI_HOME to another disk"
        else:
            hint = "run `molt-tui db rebuild`"
        raise kind(f"{path}: {text}; {hint}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}; run `molt-tui db rebuild` (run directories are not affected)") from error


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode with the journal mode that the file system allows."""
    if read_only:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    else:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        mode = journal_mode(path)
        _set_journal(connection, mode)
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA mmap_size = 0")  # a truncated map on a shared file system would end the process
    connection.execute("PRAGMA cache_size = -2048")  # per thread, and no faster when larger: the system caches the file
    return connection


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """Change the journal mode if it differs. SQLite does not wait for another process here, so this does."""
    late = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != mode:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > late:
                raise
            time.sleep(0.02)


def open_store(home: Home) -> Store:
    """Open molt.db for reading and writing; it is created and migrated as needed."""
    home.create()
    with store_errors(home.database):
        if not home.database.exists():
            os.close(os.open(home.database, os.O_CREAT | os.O_RDWR, 0o600))
        connection = connect(home.database)
        try:
            _migrate_if_old(home, connection)
        except BaseException:
            connection.close()
            raise
    return Store(home, connection)


def open_in_memory(home: Home) -> Store:
    """An empty database for one command, where the disk takes none."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    _migrate_if_old(home, connection)
    return Store(home, connection)


def _migrate_if_old(home: Home, connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{home.database} was written by a newer molt-tui (schema {version}, this one has {SCHEMA_VERSION});"
            " update molt-tui or set MOLT_TUI_HOME"
        )
    if version < SCHEMA_VERSION:
        from molt_tui.store.schema import migrate  # sqlite-utils takes a quarter second to import

        migrate(connection, SCHEMA_VERSION)
