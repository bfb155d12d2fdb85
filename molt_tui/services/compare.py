"""Several runs side by side: settings that differ and final metrics."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from molt_tui.services import metrics
from molt_tui.services.runs import Run
from molt_tui.store.database import Store


@dataclass(frozen=True)
class Comparison:
    """Flag -> value per run, where they differ; metric -> newest value per run. None: not set, not reported."""

    settings: dict[str, list[Any]]
    metrics: dict[str, list[Any]]


def settings_of(run: Run) -> dict[str, Any]:
    """Dotted flag -> value of the run's resolved configuration; empty when run.toml cannot be read."""
    try:
        table = tomllib.loads(run.directory.run_toml.read_text())
    except (OSError, ValueError):
        return {}
    return dict(_leaves(table, ""))


def compare_runs(store: Store, runs: list[Run]) -> Comparison:
    """Compare in the order given."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for table in settings for name in table)
    different = {name: [table.get(name) for table in settings] for name in names}
    newest = [metrics.latest(store, run) for run in runs]
    keys = sorted({key for table in newest for key in table})
    return Comparison(
        {name: values for name, values in different.items() if any(v != values[0] for v in values)},
        {key: [table[key].value if key in table else None for table in newest] for key in keys},
    )


def _leaves(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
