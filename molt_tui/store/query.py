"""SQL typed by a person: read-only, with a time and a row limit, and errors in one line."""

from __future__ import annotations

import math
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from molt_tui.errors import NotFound, Refused, StoreError
from molt_tui.store.database import connect
from molt_tui.store.home import Home

TIME_LIMIT_S = 30.0
ROW_LIMIT = 10_000
MAX_VALUE_BYTES = 32 * 1024 * 1024  # one text or blob; keeps a mistyped expression from filling the memory
_OPS_PER_CHECK = 10_000

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_RECURSIVE,
}
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "data_version"}


@dataclass(frozen=True)
class QueryResult:
    """`truncated` tells that there were more rows than the limit."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool

    def objects(self) -> list[dict[str, Any]]:
        """Row objects, JSON-safe: infinities travel as strings, blobs as hexadecimal text."""
        return [dict(zip(self.columns, map(_json_safe, row))) for row in self.rows]


def run_query(home: Home, sql: str, *, time_limit_s: float = TIME_LIMIT_S, row_limit: int = ROW_LIMIT) -> QueryResult:
    """Run one SELECT (or EXPLAIN, or a PRAGMA that describes tables).

    Raises Refused for SQL that is wrong, writes, or runs longer than the limit; NotFound without a database.
    """
    if not home.database.exists():
        raise NotFound(f"{home.database} does not exist yet; run `molt-tui db ingest`")
    connection = connect(home.database, read_only=True)
    try:
        deadline = time.monotonic() + time_limit_s
        connection.row_factory = None
        connection.execute("PRAGMA query_only = on")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.execute("SELECT 1 FROM rollout_rows_fts LIMIT 0")  # the search table sets itself up before the guard
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _OPS_PER_CHECK)
        cursor = connection.execute(sql)
        found = cursor.fetchmany(row_limit + 1)
        if cursor.description is None:
            raise Refused("this statement returns nothing; give a SELECT")
        columns = _unique([d[0] for d in cursor.description])
        return QueryResult(columns, found[:row_limit], len(found) > row_limit)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise _explain(error, home, time_limit_s) from error
    finally:
        connection.close()


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
