"""Notes and tags that people append to notes.jsonl."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.wire import LINE_BYTES, RunDir, open_regular
from molt_tui.store import rows


def ingest_notes(connection: sqlite3.Connection, run_num: int, run: RunDir) -> None:
    """Read the new complete lines of notes.jsonl and bring the run's tags up to date."""
    found = connection.execute(
        "SELECT offset, bad_lines FROM cursors WHERE run_num = ? AND attempt = 0 AND stream = 'notes'", (run_num,)
    ).fetchone()
    offset, bad = (found["offset"], found["bad_lines"]) if found else (0, 0)
    position = offset
    for line in _lines(run.notes, offset):
        row = _note_row(run_num, position, line) if line.endswith(b"\n") else None
        position += len(line)
        if row is None:
            bad += 1
        else:
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?, ?)", row)
    if position != offset:
        connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, 0, 'notes', 0, ?, ?)", (run_num, position, bad))
    if position != offset or found is None:
        connection.execute("UPDATE runs SET tags = ? WHERE num = ?", (rows.dump(_tags(connection, run_num)), run_num))


def _lines(path: Path, offset: int) -> Iterator[bytes]:
    """Complete lines from an offset on; one without an end comes in pieces, so that it is read once and never held."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            while (line := file.readline(LINE_BYTES)).endswith(b"\n") or len(line) == LINE_BYTES:
                yield line
    except FileNotFoundError:
        return


def _note_row(run_num: int, position: int, line: bytes) -> tuple[Any, ...] | None:
    try:
        note = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or note.get("action") not in ("note", "tag", "untag"):
        return None
    return (run_num, position, rows.number(note.get("t")), rows.string(note.get("who")), note["action"],
            rows.string(note.get("text")) or "")  # fmt: skip


def _tags(connection: sqlite3.Connection, run_num: int) -> list[str]:
    """The tags of meta.json with every tag and untag applied in order."""
    own = connection.execute("SELECT own_tags FROM runs WHERE num = ?", (run_num,)).fetchone()["own_tags"]
    tags = dict.fromkeys(json.loads(own or "[]"))
    for note in connection.execute(
        "SELECT action, text FROM notes WHERE run_num = ? AND action != 'note' ORDER BY position", (run_num,)
    ):
        if note["action"] == "tag":
            tags[note["text"]] = None
        else:
            tags.pop(note["text"], None)
    return list(tags)
