"""Opening the store for one command, up to date with the run directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from molt_tui.cli.output import say
from molt_tui.services import runs
from molt_tui.services.runs import Run
from molt_tui.store.database import Store, open_store
from molt_tui.store.home import find_home


@contextmanager
def fresh_store(*, rollouts: bool = False) -> Iterator[Store]:
    """The store after an ingest; run directories that cannot be read are named on stderr."""
    with open_store(find_home()) as store:
        for problem in runs.refresh(store, rollouts=rollouts).problems:
            say(f"skipped {problem}")
        yield store


@contextmanager
def fresh_run(reference: str, *, rollouts: bool = False) -> Iterator[tuple[Store, Run]]:
    """The store and the run that a person named."""
    with fresh_store(rollouts=rollouts) as store:
        yield store, runs.find_run(store, reference)
