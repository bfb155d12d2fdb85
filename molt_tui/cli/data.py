"""Commands about recorded data: trace, query, export."""

from __future__ import annotations

from typing import Annotated

import typer

from molt_tui.cli.app import Json, Reference, app


@app.command()
def trace(
    run: Reference,
    step: Annotated[int | None, typer.Option("--step", help="which step; the newest with recorded rollouts")] = None,
    sort: Annotated[str, typer.Option("--sort", help="reward, length, masked, ratio, experts, staleness")] = "recorded",
    reverse: Annotated[bool, typer.Option("--reverse", help="the other way round")] = False,
    every_step: Annotated[bool, typer.Option("--all", help="rollouts of every step")] = False,
    search: Annotated[str | None, typer.Option("--search", help="find text in the recorded rollouts of every step")] = None,
    rollout: Annotated[str | None, typer.Option("--rollout", help="one rollout token by token")] = None,
    text: Annotated[bool, typer.Option("--text", help="print the whole text of each rollout")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="rollouts at most, with --all or --search")] = 100,
    as_json: Json = False,
) -> None:
    """Show the recorded rollouts of a step, or search them; one rollout token by token."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.errors import Refused
    from molt_tui.services import traces
    from molt_tui.store.rows import string
    from molt_tui.tokens import ORDERS

    if sort not in ORDERS:
        raise Refused(f"--sort: {sort!r} is not one of {', '.join(ORDERS)}")
    whole = every_step or search is not None
    with fresh_run(run, rollouts=whole) as (store, found):
        if search is not None:
            rows = traces.ordered(traces.find(store, search, found, limit=limit), sort, reverse=reverse)
        elif every_step:
            rows = traces.whole_run(store, found, sort, reverse=reverse, limit=limit)
        else:
            records = list(traces.rollouts(store, found, step)) if as_json else traces.rollouts(store, found, step)
            rows = traces.ordered(traces.summaries(records), sort, reverse=reverse)
        if rollout is not None:
            _print_tokens(traces.named(store, found, rollout, step), as_json)
            return
    if as_json and whole:
        output.emit_json(rows)
    elif as_json:
        full = {string(record.get("rollout_id")): record for record in records}
        output.emit_json([full[row["rollout_id"]] | {"run": found.id} for row in rows])
    elif text and not whole:
        _print_texts(rows)
    else:
        _print_rows(rows)


def _print_rows(rows: list[dict]) -> None:
    from molt_tui.cli import output
    from molt_tui.text import clean

    def tail(row: dict) -> str:
        found = row.get("excerpt") or row["text"][row["prompt_chars"] or 0 :]
        return clean(found)[:60]

    output.table(
        ("STEP", "ROLLOUT", "REWARD", "ADV", "TOKENS", "MASKED", "RATIO", "EXPERTS", "STALE", "VERSIONS", "TEXT"),
        [(r["step"], r["rollout_id"], r["reward"], _short(r["advantage"]), r["sampled"], r["masked"], _short(r["ratio_extreme"]),
          r["mismatched"], r["staleness_max"], _range(r["min_version"], r["max_version"]), tail(r)) for r in rows],
        right=("STEP", "REWARD", "ADV", "TOKENS", "MASKED", "RATIO", "EXPERTS", "STALE"),
    )  # fmt: skip


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _range(low: int | None, high: int | None) -> str:
    if low is None:
        return "-"
    return str(low) if low == high else f"{low}-{high}"


def _print_texts(rows: list[dict]) -> None:
    from molt_tui.cli import output
    from molt_tui.text import clean

    for row in rows:
        print(f"--- step {row['step']} rollout {clean(row['rollout_id'])} reward {output.cell(row['reward'])}")
        print(clean(row["text"], lines=True))


def _print_tokens(rollout: object, as_json: bool) -> None:
    from engine.wire import to_wire
    from molt_tui.cli import output
    from molt_tui.tokens import Rollout

    assert isinstance(rollout, Rollout)
    rows = [(i, rollout.ids[i], rollout.pieces[i], rollout.logprobs[i], rollout.train_logprobs[i], rollout.ratio(i),
             rollout.versions[i], rollout.staleness(i), rollout.advantage_of(i), rollout.layers[i], rollout.reason(i))
            for i in range(len(rollout))]  # fmt: skip
    names = ("position", "id", "piece", "logprob", "train_logprob", "ratio", "version", "staleness", "advantage",
             "mismatched_layers", "reason")  # fmt: skip
    if as_json:
        output.emit_json(to_wire([dict(zip(names, row)) for row in rows]))
        return
    output.say(f"{rollout.rollout_id} step {rollout.step}: reward {output.cell(rollout.reward)}, expected"
               f" {output.cell(rollout.label)}, {rollout.sampled} sampled, {rollout.masked} masked")  # fmt: skip
    shown = [(i, token, repr(piece), old, new, _short(ratio), version, stale, _short(advantage),
              " ".join(map(str, layers or ())), reason)
             for i, token, piece, old, new, ratio, version, stale, advantage, layers, reason in rows]  # fmt: skip
    head = ("POS", "ID", "TEXT", "LOGPROB", "TRAINER", "RATIO", "VERSION", "STALE", "ADV", "LAYERS", "TRAINED")
    output.table(head, shown, right=("POS", "ID", "LOGPROB", "TRAINER", "RATIO", "VERSION", "STALE", "ADV"))


@app.command()
def query(
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="one SELECT over runs, run_summary, metrics, ...")] = None,
    saved: Annotated[str | None, typer.Option("--saved", help="run a saved query by name")] = None,
    list_saved: Annotated[bool, typer.Option("--list", help="list the saved queries")] = False,
    save: Annotated[str | None, typer.Option("--save", metavar="NAME", help="keep this SQL under a name")] = None,
    delete: Annotated[str | None, typer.Option("--delete", metavar="NAME", help="forget a saved query")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="rows at most")] = 10_000,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="time limit")] = 30.0,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print a Markdown table")] = False,
) -> None:
    """Ask the database a question in SQL (read-only)."""
    import sys

    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_store
    from molt_tui.errors import Refused
    from molt_tui.services import queries, tables
    from molt_tui.store.home import find_home
    from molt_tui.store.query import Limits, run_query

    if as_json + as_csv + as_markdown > 1:
        raise Refused("give one of --json, --csv and --markdown")
    if list_saved or delete is not None:
        _manage_saved(delete, as_json)
        return
    if (sql is None) == (saved is None):
        raise Refused("give SQL, or --saved NAME (`molt-tui query --list` shows the names)")
    wanted = sql if sql is not None else queries.find(find_home(), saved or "").sql
    with fresh_store(rollouts=True) as store:
        home = store.home
    result = run_query(home, wanted, Limits(seconds, limit))
    if save is not None:
        queries.save(home, save, wanted)
        output.say(f"saved as {save!r} in {queries.path_of(home)}")
    if as_json:
        output.emit_json(result.objects())
    elif as_csv or as_markdown:
        writer = tables.WRITERS["csv" if as_csv else "markdown"]
        writer(result.columns, result.rows, sys.stdout, safe=sys.stdout.isatty())
    else:
        output.table([*map(output.cell, result.columns)], result.rows)
    if result.cut == "rows":
        output.say(f"only the first {len(result.rows)} rows are shown; raise --limit or narrow the query")
    elif result.cut:
        output.say(f"only the first {len(result.rows)} rows are shown: more would not fit into memory; take parts with substr()")


def _manage_saved(delete: str | None, as_json: bool) -> None:
    from molt_tui.cli import output
    from molt_tui.services import queries
    from molt_tui.store.home import find_home

    home = find_home()
    if delete is not None:
        queries.delete(home, delete)
        output.say(f"deleted {delete!r}")
        return
    known = queries.saved(home)
    if as_json:
        output.emit_json([{"name": q.name, "sql": q.sql, "own": q.own} for q in known])
    else:
        output.table(("NAME", "FROM", "SQL"), [(q.name, "you" if q.own else "molt-tui", " ".join(q.sql.split())) for q in known])


@app.command()
def export(
    references: Annotated[list[str], typer.Argument(metavar="RUN...", help="ids, prefixes, names, or `last`")],
    metrics: Annotated[bool, typer.Option("--metrics", help="one row per reported value (the default)")] = False,
    events: Annotated[bool, typer.Option("--events", help="one row per event")] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="one row per recorded rollout")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="one row per token of the recorded rollouts")] = False,
    style: Annotated[str, typer.Option("--format", help="csv, jsonl or parquet")] = "csv",
    target: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="a file, not standard output")] = None,
) -> None:
    """Write what runs recorded, as a stream of rows: metrics, events, rollouts or tokens. A file is readable by you alone."""
    import os
    import sys

    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_store
    from molt_tui.errors import Refused
    from molt_tui.services import export as service
    from molt_tui.services.runs import find_run

    chosen = [n for n, on in (("metrics", metrics), ("events", events), ("rollouts", rollouts), ("tokens", tokens)) if on]
    if len(chosen) > 1:
        raise Refused("give one of --metrics, --events, --rollouts and --tokens")
    if style not in service.FORMATS:
        raise Refused(f"--format: {style!r} is not one of {', '.join(service.FORMATS)}")
    what = chosen[0] if chosen else "metrics"
    with fresh_store(rollouts=what == "rollouts") as store:
        found = list({run.id: run for run in (find_run(store, reference) for reference in references)}.values())
        if target is None:
            count = service.write(store, found, what, style, sys.stdout.buffer, safe=sys.stdout.isatty())
        else:
            count = service.write_file(store, found, what, style, target)
    where = f" in {os.path.abspath(target)}" if target else ""
    output.say(f"{count} {what} rows of {len(found)} run{'s' if len(found) != 1 else ''}{where}")
