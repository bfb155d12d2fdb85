"""Notes and tags of people, appended to the run's notes.jsonl so that everyone who sees the run sees them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from engine.wire import append_line
from molt_tui.errors import MoltError, Refused
from molt_tui.services.control import who
from molt_tui.services.runs import Run
from molt_tui.store.database import Store
from molt_tui.store.ingest import ingest

MAX_TEXT = 4000  # one line of the file is one write; a longer remark belongs into a file of its own


def add(store: Store, run: Run, action: str, text: str) -> None:
    """Append a `note`, `tag` or `untag` and bring the database up to date. Raises Refused for empty text."""
    if not text.strip():
        raise Refused(f"a {action} needs text")
    if len(text) > MAX_TEXT:
        raise Refused(f"a {action} has at most {MAX_TEXT} characters, this one has {len(text)}")
    try:
        append_line(run.directory.notes, {"t": time.time(), "who": who(), "action": action, "text": text.strip()})
    except OSError as error:
        raise MoltError(f"cannot write {run.directory.notes}: {error.strerror}") from error
    ingest(store, [run.path], rollouts=False)


def retag(store: Store, runs: Sequence[Run], add_tags: Iterable[str], remove_tags: Iterable[str]) -> int:
    """Give and take tags; only what changes something is written. Returns the number of runs changed."""
    wanted, unwanted, changed = list(add_tags), list(remove_tags), 0
    for run in runs:
        lines = [("tag", tag) for tag in wanted if tag not in run.tags]
        lines += [("untag", tag) for tag in unwanted if tag in run.tags]
        for action, text in lines:
            add(store, run, action, text)
        changed += bool(lines)
    return changed
