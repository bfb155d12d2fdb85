"""SQL typed by a person: read-only, with limits of time, rows and bytes, and errors in one line."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molt_tui.errors import NotFound, Refused, StoreError
from molt_tui.store.database import connect
from molt_tui.store.home import Home

TIME_LIMIT_S = 30.0
ROW_LIMIT = 10_000
BYTE_LIMIT = 64 * 1024 * 1024
MAX_VALUE_BYTES = 8 * 1024 * 1024  # one text or blob; what a single step of SQLite works on, between two looks at the clock
MEMORY_LIMIT = 512 * 1024 * 1024  # of SQLite in this process: a row may hold many such values, and an expression more
MAX_PATTERN = 200  # characters of a LIKE or GLOB pattern: its time grows with every wildcard
_OPS_PER_CHECK = 1_000

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "data_version"}


@dataclass(frozen=True)
class QueryResult:
    """`cut` says which limit left rows out: "rows", "bytes", or "" when all are here."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    cut: str = ""
    seconds: float = 0.0

    @property
    def truncated(self) -> bool:
        return bool(self.cut)

    def objects(self) -> list[dict[str, Any]]:
        """Row objects, JSON-safe: infinities travel as strings, blobs as hexadecimal text."""
        return [dict(zip(self.columns, map(_json_safe, row))) for row in self.rows]


@dataclass(frozen=True)
class Limits:
    seconds: float = TIME_LIMIT_S
    rows: int = ROW_LIMIT
    bytes: int = BYTE_LIMIT


def run_query(home: Home, sql: str, limits: Limits | None = None, cancelled: Callable[[], bool] = lambda: False) -> QueryResult:
    """Run one SELECT (or EXPLAIN, or a PRAGMA that describes tables).

    `cancelled` is asked from time to time. Raises Refused for SQL that is wrong, writes, was cancelled or runs longer than
    the limit; NotFound without a database.
    """
    limits = limits or Limits()
    if not home.database.exists():
        raise NotFound(f"{home.database} does not exist yet; run `molt-tui db ingest`")
    connection = connect(home.database, read_only=True)
    started = time.monotonic()

    def over() -> bool:
        return cancelled() or time.monotonic() - started > limits.seconds

    try:
        _guard(connection, over)
        cursor = connection.execute(sql)
        rows, cut = _fetch(cursor, limits, over)
        if cursor.description is None:
            raise Refused("this statement returns nothing; give a SELECT")
        return QueryResult(_unique([d[0] for d in cursor.description]), rows, cut, time.monotonic() - started)
    except MemoryError as error:
        raise Refused(f"the query needs more than {MEMORY_LIMIT >> 20} MiB; take a part of large values with substr()") from error
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if "interrupted" in str(error) and cancelled():
            raise Refused("the query was cancelled") from error
        raise _explain(error, home, limits.seconds) from error
    finally:
        connection.close()


def _guard(connection: sqlite3.Connection, over: Callable[[], bool]) -> None:
    """Let the connection only read, and stop it when `over` says so."""
    connection.row_factory = None
    connection.execute("PRAGMA query_only = on")
    connection.execute(f"PRAGMA hard_heap_limit = {MEMORY_LIMIT}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
    connection.execute("SELECT 1 FROM rollout_rows_fts LIMIT 0")  # the search table sets itself up before the guard
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(over, _OPS_PER_CHECK)


def _fetch(cursor: sqlite3.Cursor, limits: Limits, over: Callable[[], bool]) -> tuple[list[tuple[Any, ...]], str]:
    """Rows up to the limits, and which of them cut the result."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor:
        if len(rows) >= limits.rows:
            return rows, "rows"
        size += sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in row)
        if size > limits.bytes and rows:
            return rows, "bytes"
        rows.append(row)
        if over():
            raise sqlite3.OperationalError("interrupted")
    return rows, ""


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second in ("load_extension", "fts3_tokenizer") else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _explain(error: Exception, home: Home, time_limit_s: float) -> Exception:
    text = str(error)
    if "interrupted" in text:
        return Refused(f"the query ran longer than {time_limit_s:g} s; narrow it with WHERE run = ... and key = ...")
    if "authoriz" in text or "readonly" in text or "prohibited" in text:
        return Refused(f"only reading is allowed here: {text}")
    if "one statement" in text:
        return Refused("give one statement at a time")
    if "no such table" in text or "no such column" in text:
        return Refused(
            f"{text}; the views are runs, run_summary, metrics, metric_curve, latest_metric, events and rollouts"
            " (columns: PRAGMA table_info(metrics))"
        )
    if "too big" in text:
        return Refused(f"a value is larger than {MAX_VALUE_BYTES >> 20} MiB; take a part of it with substr()")
    if "pattern too complex" in text:
        return Refused(f"a LIKE or GLOB pattern may have {MAX_PATTERN} characters")
    if "malformed" in text or "not a database" in text:
        return StoreError(f"{home.database}: {text}; run `molt-tui db rebuild`")
    return Refused(f"SQL error: {text}")


def _unique(names: list[str]) -> list[str]:
    """Column names for row objects; a repeated one gets a number."""
    taken: set[str] = set()
    result = []
    for name in names:
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique)
        result.append(unique)
    return result


def _json_safe(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    return value
