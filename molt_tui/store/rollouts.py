"""Recorded rollouts (rollouts/<attempt>-<step>.jsonl.gz) into a searchable table."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.wire import LINE_BYTES, RunDir, open_regular
from molt_tui.store import rows
from molt_tui.store.database import Store

_NAME = re.compile(r"(\d{1,9})-(\d{1,12})\.jsonl\.gz")


def rollout_files(run: RunDir) -> list[tuple[int, int, Path]]:
    """(attempt, step, path) of every file, in order of step, then attempt."""
    try:
        names = os.listdir(run.rollouts)
    except FileNotFoundError:
        return []
    found = [(int(m[1]), int(m[2]), run.rollouts / m[0]) for n in names if (m := _NAME.fullmatch(n))]
    return sorted(found, key=lambda item: (item[1], item[0]))


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """Records of one file; ends quietly where it is torn or a line has no end, skips lines that are not JSON objects."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rb") as file:
            while line := file.readline(LINE_BYTES):
                if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                    return
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    yield record
    except (EOFError, gzip.BadGzipFile, zlib.error, FileNotFoundError):
        return


def trained_version(store: Store, run_num: int, attempt: int, step: int) -> int | None:
    """The trainer's version when it consumed the batch of a step: the one it reported then, less the publication before that."""
    of_it = "e.run_num = m.run_num AND e.attempt = m.attempt AND e.step = m.step - 1 AND e.version = m.version"
    published = f"EXISTS (SELECT 1 FROM event_rows e WHERE {of_it} AND e.kind = 'sync')"
    sql = (
        f"SELECT m.version - {published} AS version FROM event_rows m"
        " WHERE m.run_num = ? AND m.attempt = ? AND m.kind = 'metrics' AND m.step = ? ORDER BY m.seq DESC LIMIT 1"
    )
    found = store.rows(sql, (run_num, attempt, step))
    return found[0]["version"] if found else None


def step_records(store: Store, run_num: int, attempt: int, step: int, path: Path) -> Iterator[dict[str, Any]]:
    """Records of one file, one at a time: they may be large. A trainer's version that an older engine left out is filled in."""
    version: tuple[int | None, ...] = ()
    for record in read_rollouts(path):
        if "version" not in record:
            version = version or (trained_version(store, run_num, attempt, step),)
            record["version"] = version[0]
        yield record


def ingest_rollouts(store: Store, run_num: int, run: RunDir) -> int:
    """Store new or grown files; returns the number of rollouts read."""
    select = "SELECT stream, offset FROM cursors WHERE run_num = ? AND stream LIKE 'rollouts/%'"
    done = {r["stream"]: r["offset"] for r in store.rows(select, (run_num,))}
    count = 0
    for attempt, step, path in rollout_files(run):
        stream, size = f"rollouts/{path.name}", path.stat().st_size
        if done.get(stream) == size:
            continue
        records = step_records(store, run_num, attempt, step, path)
        found = [row for record in records if (row := rows.rollout_row(record)) is not None]
        with store.write() as connection:
            for row in found:
                row["run_num"] = run_num
                names = ", ".join(row)
                updates = ", ".join(f"{n} = excluded.{n}" for n in row)
                connection.execute(
                    f"INSERT INTO rollout_rows ({names}) VALUES ({', '.join('?' * len(row))})"
                    f" ON CONFLICT (run_num, attempt, step, rollout_id) DO UPDATE SET {updates}",
                    tuple(row.values()),
                )
            connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, 0, ?, 0)", (run_num, attempt, stream, size))
        count += len(found)
    return count
