"""The most frequent command, `runs`, apart from typer, which takes longer to start than the answer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from molt_tui.cli import output
from molt_tui.cli.session import fresh_store
from molt_tui.services.runs import as_json as run_json
from molt_tui.services.runs import list_runs

if TYPE_CHECKING:
    from molt_tui.services.runs import Run
    from molt_tui.store.database import Store
    from molt_tui.verdict import Verdict

CANNOT_START = "it cannot start"
COLUMNS = ("ID", "STATE", "STEP", "REWARD", "HEALTH", "AGE", "ATT", "RECIPE", "GROUP", "NAME", "TAGS")


def print_runs(as_json: bool, limit: int | None = None) -> None:
    """Print runs, newest first."""
    with fresh_store() as store:
        found = list_runs(store, limit=limit)
        health = _health(store, found)
    if as_json:
        output.emit_json([run_json(run) | {"alerts": alerts_json(health.get(run.id, []))} for run in found])
        return
    if not found:
        output.say("no runs yet; start one with `molt-tui demo` or `molt-tui launch RECIPE`")
        return
    rows = [
        (r.id, r.state, progress(r.step, r.max_steps), r.reward, word_of(health.get(r.id)), output.age(r.created), r.attempts,
         r.recipe, r.group, r.name, " ".join(r.tags))
        for r in found
    ]  # fmt: skip
    output.table(COLUMNS, rows, right=("STEP", "REWARD", "AGE", "ATT"))
    for run in found:
        if run.state == "queued" and run.detail.startswith(CANNOT_START):
            output.say(f"{run.id}: {run.detail}")


def _health(store: Store, found: list[Run]) -> dict[str, list[Verdict]]:
    """Verdicts on the runs that are at work, by run id."""
    live = [run for run in found if not run.final]
    if not live:
        return {}
    from molt_tui.services.health import HealthReader, findings

    reader = HealthReader()
    return {run.id: findings(store, run, reader) for run in live}


def alerts_json(found: list[Verdict]) -> list[dict[str, str]]:
    if not found:
        return []
    from molt_tui.services.health import as_json

    return as_json(found)


def word_of(found: list[Verdict] | None) -> str | None:
    """The headline's rule, and how urgent it is when it is; None for a run that has ended."""
    if not found:
        return None
    return f"{found[0].level}: {found[0].rule}" if found[0].alarming else found[0].rule


def progress(step: int | None, max_steps: int | None) -> str:
    """The step, of how many where that is known."""
    if step is None:
        return output.MISSING
    return f"{step}/{max_steps}" if max_steps else str(step)
