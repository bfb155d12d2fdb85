"""`molt-tui compare`: runs and groups side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from molt_tui.cli.app import Json, app

FORMATS = ("table", "json", "csv", "markdown")


@app.command()
def compare(
    references: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="two to eight runs or groups (group:NAME)")],
    metric: Annotated[str | None, typer.Option("--metric", "-m", help="also the curve of this metric")] = None,
    by: Annotated[str, typer.Option("--by", help="axis of the curve: step, tokens or time")] = "step",
    form: Annotated[str, typer.Option("--format", help="table, json, csv or markdown")] = "table",
    output_file: Annotated[
        str | None, typer.Option("--output", "-o", help="write to a new file; its ending .csv, .json or .md says how")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs and groups. Settings that differ, newest metrics side by side (groups: mean ± standard deviation), and
    with --metric its curve."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_store
    from molt_tui.comparison import DEFAULT_METRIC, MAX_SUBJECTS
    from molt_tui.errors import Refused
    from molt_tui.services import comparison_export as export
    from molt_tui.services.compare import Comparer, require_metric

    if not 2 <= len(references) <= MAX_SUBJECTS:
        raise Refused(f"give two to {MAX_SUBJECTS} runs or groups")
    if form not in FORMATS:
        raise Refused(f"--format {form!r}: one of {', '.join(FORMATS)}")
    with fresh_store() as store:
        found = Comparer().compare(store, references, metric or DEFAULT_METRIC, by)
    if metric is not None:
        require_metric(found)
        for problem in found.problems:
            output.say(problem)
    if output_file is not None:
        output.say(f"written to {export.save(found, output_file)}")
    elif as_json or form == "json":
        everything = export.as_json(found)
        curve = {"metric", "by", "curves", "problems"}
        output.emit_json({k: v for k, v in everything.items() if metric is not None or k not in curve})
    elif form != "table":
        print(export.as_text(found, form), end="")
    else:
        _print_tables(found, with_curve=metric is not None)


def _print_tables(found, *, with_curve: bool) -> None:
    from molt_tui.cli import output
    from molt_tui.comparison import short

    names = [output.cell(s.label + (f" (n={len(s.run_ids)})" if s.is_group else "")) for s in found.subjects]
    if found.settings:
        output.table(("SETTING", *names), [(key, *map(short, values)) for key, values in found.settings.items()])
    else:
        print("no setting differs")
    print()
    output.table(("METRIC", *names), [(key, *map(short, values)) for key, values in found.final.items()])
    if with_curve:
        print()
        rows = [(name, p.x, short(p.mean), p.sd, p.n) for name, curve in zip(names, found.curves) for p in curve]
        output.table(("RUN", found.by.upper(), output.cell(found.metric), "SD", "N"), rows)
