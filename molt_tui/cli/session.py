"""Opening the store for one command, up to date with the run directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molt_tui.cli.output import say
from molt_tui.errors import NotWritable
from molt_tui.services import runs
from molt_tui.services.runs import Run
from molt_tui.store.database import Store, open_in_memory, open_store
from molt_tui.store.home import find_home
from molt_tui.store.ingest import find_runs, ingest


@contextmanager
def fresh_store(*, rollouts: bool = False) -> Iterator[Store]:
    """The store after an ingest; run directories that cannot be read are named on stderr."""
    with _up_to_date(rollouts) as store:
        yield store


@contextmanager
def fresh_run(reference: str, *, rollouts: bool = False) -> Iterator[tuple[Store, Run]]:
    """The store and the run that a person named. Where the database cannot be written, a run that is named by its id is read
    from its directory alone."""
    try:
        store = _up_to_date(rollouts)
    except NotWritable as error:
        store = _alone(reference, rollouts, error)
    with store:
        yield store, runs.find_run(store, reference)


def _up_to_date(rollouts: bool) -> Store:
    store = open_store(find_home())
    try:
        for problem in runs.refresh(store, rollouts=rollouts).problems:
            say(f"skipped {problem}")
    except BaseException:
        store.close()
        raise
    return store


def _alone(reference: str, rollouts: bool, error: NotWritable) -> Store:
    """A store in memory with the runs whose id begins so. Raises `error` when there is none."""
    home = find_home()
    found = [path for path in find_runs(home.runs_root) if reference and Path(path).name.startswith(reference)]
    if not found:
        raise error
    say(f"{error}; this is read from the run's directory alone")
    store = open_in_memory(home)
    for problem in ingest(store, found, rollouts=rollouts).problems:
        say(f"skipped {problem}")
    return store
