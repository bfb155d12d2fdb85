"""Notes and tags of people, appended to the run's notes.jsonl so that everyone who sees the run sees them."""

from __future__ import annotations

import time

from engine.wire import append_line
from molt_tui.errors import MoltError, Refused
from molt_tui.services.control import who
from molt_tui.services.runs import Run
from molt_tui.store.database import Store
from molt_tui.store.ingest import ingest


def add(store: Store, run: Run, action: str, text: str) -> None:
    """Append a `note`, `tag` or `untag` and bring the database up to date. Raises Refused for empty text."""
    if not text.strip():
        raise Refused(f"a {action} needs text")
    try:
        append_line(run.directory.notes, {"t": time.time(), "who": who(), "action": action, "text": text.strip()})
    except OSError as error:
        raise MoltError(f"cannot write {run.directory.notes}: {error.strerror}") from error
    ingest(store, [run.path], rollouts=False)
