"""`molt-tui delete`: remove runs for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from molt_tui.cli.app import Json, app


@app.command()
def delete(
    references: Annotated[list[str], typer.Argument(metavar="RUN...", help="id, unique prefix of one, name, or `last`")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: Json = False,
) -> None:
    """Delete runs for good. Run directory, checkpoints in it and every number; refused while a run is at work."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_store
    from molt_tui.errors import Refused
    from molt_tui.services import delete as service
    from molt_tui.services.runs import find_run

    with fresh_store() as store:
        runs = list({run.id: run for run in (find_run(store, reference) for reference in references)}.values())
        problems = [problem for run in runs if (problem := service.why_not(store, run)) is not None]
        if problems:
            raise Refused(problems[0] + (f"; and {len(problems) - 1} more" if len(problems) > 1 else ""))
        for run in runs:
            output.say(f"{run.id}  {run.name}  {run.state}  {run.path}")
        if not yes and not _confirmed(len(runs)):
            raise Refused("nothing was deleted; --yes deletes without a question")
        done, failed = service.delete_all(store, [run.id for run in runs])
    if as_json:
        output.emit_json({"deleted": [run.id for run in done], "problems": failed})
    for problem in failed:
        output.say(problem)
    output.say(f"deleted {len(done)} of {len(runs)}")
    if failed:
        raise typer.Exit(1)


def _confirmed(count: int) -> bool:
    """Ask on a terminal; without one the answer is no."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    what = "this run" if count == 1 else f"these {count} runs"
    print(f"Delete {what} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
