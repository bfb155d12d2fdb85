"""The most frequent command, `runs`, apart from typer, which takes longer to start than the answer takes."""

from __future__ import annotations

from molt_tui.cli import output
from molt_tui.cli.session import fresh_store
from molt_tui.services.runs import as_json as run_json
from molt_tui.services.runs import list_runs

COLUMNS = ("ID", "STATE", "STEP", "REWARD", "AGE", "ATT", "RECIPE", "GROUP", "NAME", "TAGS")


def print_runs(as_json: bool, limit: int | None = None) -> None:
    """Print runs, newest first."""
    with fresh_store() as store:
        found = list_runs(store, limit=limit)
    if as_json:
        output.emit_json([run_json(run) for run in found])
        return
    if not found:
        output.say("no runs yet; start one with `molt-tui demo` or `molt-tui launch RECIPE`")
        return
    rows = [
        (r.id, r.state, progress(r.step, r.max_steps), r.reward, output.age(r.created), r.attempts, r.recipe, r.group, r.name,
         " ".join(r.tags))
        for r in found
    ]  # fmt: skip
    output.table(COLUMNS, rows, right=("STEP", "REWARD", "AGE", "ATT"))


def progress(step: int | None, max_steps: int | None) -> str:
    """The step, of how many where that is known."""
    if step is None:
        return output.MISSING
    return f"{step}/{max_steps}" if max_steps else str(step)
