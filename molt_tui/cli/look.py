"""Commands that only look: runs, show, metrics, logs."""

from __future__ import annotations

from typing import Annotated

import typer

from molt_tui.cli.app import Json, Reference, app


@app.command()
def runs(
    as_json: Json = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="show at most this many")] = None,
    only: Annotated[
        str, typer.Option("--filter", "-f", help="like / on the screen: 'state:running reward:>0.5 tag:moe age:<2d -group:old'")
    ] = "",
    sort: Annotated[str, typer.Option("--sort", help="newest, state, name, step, reward, age, attempts or job")] = "newest",
    reverse: Annotated[bool, typer.Option("--reverse", help="the other way round")] = False,
    grouped: Annotated[bool, typer.Option("--grouped", help="one line per group: mean ± standard deviation")] = False,
) -> None:
    """List runs, newest first."""
    from molt_tui.cli.runs_table import print_runs

    print_runs(as_json, limit, only, sort, reverse, grouped)


@app.command()
def show(
    run: Reference,
    step: Annotated[int | None, typer.Option("--step", help="verdict and metrics as of this step")] = None,
    as_json: Json = False,
) -> None:
    """Show one run. State, verdict, attempts, newest metrics, notes, recent events."""
    from engine.wire import to_wire
    from molt_tui.cli import output
    from molt_tui.cli.runs_table import progress
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import health, runs
    from molt_tui.services import metrics as service
    from molt_tui.text import clean

    with fresh_run(run) as (store, found):
        reported, verdicts = service.latest(store, found, until=step), health.findings(store, found, at=step)
        attempts, notes = runs.attempts(store, found), runs.notes(store, found)
        events = service.events(store, found, last=12)
    newest = {key: reported[key] for key in sorted(reported, key=service.telling)}
    if as_json:
        latest = {k: {"step": p.step, "attempt": p.attempt, "value": to_wire(p.value)} for k, p in newest.items()}
        output.emit_json({**runs.as_json(found), "detail": found.detail, "path": str(found.path), "attempt_list": attempts,
                          "max_steps": found.max_steps, "last_checkpoint": found.last_checkpoint, "notes": notes,
                          "last_error": found.last_error, "verdict": verdicts[0].text if verdicts else found.state,
                          "alerts": health.as_json(verdicts), "metrics": latest, "events": events})  # fmt: skip
        return
    output.pairs(
        [("id", found.id), ("name", found.name), ("state", found.state), ("detail", found.detail), ("group", found.group),
         ("recipe", found.recipe), ("step", progress(found.step, found.max_steps)), ("version", found.version),
         ("last checkpoint", found.last_checkpoint), ("last error", found.last_error),
         ("created", output.clock(found.created)), ("updated", output.clock(found.updated)), ("job", found.job_id),
         ("cluster", found.cluster), ("tags", " ".join(found.tags)), ("directory", found.path)]
    )  # fmt: skip
    for verdict in (v for i, v in enumerate(verdicts) if i == 0 or v.alarming):
        print(f"{verdict.level:<8}  {clean(verdict.text)}" + (f"\n{'':<10}{clean(verdict.action)}" if verdict.action else ""))
    print()
    output.table(("ATTEMPT", "END", "STEP", "RESUMABLE", "DETAIL"),
                 [(a["attempt"], a["reason"] or "-", a["step"], {1: "yes", 0: "no"}.get(a["resumable"]), a["detail"])
                  for a in attempts], right=("ATTEMPT", "STEP"))  # fmt: skip
    if newest:
        print()
        output.table(("METRIC", "STEP", "VALUE"), [(k, p.step, p.value) for k, p in newest.items()], right=("STEP",))
    for title, lines in (("NOTES", _note_lines(notes)), ("EVENTS", [event_line(e) for e in events])):
        if lines:
            print(f"\n{title}")
            print("\n".join(lines))


def _note_lines(notes: list[dict]) -> list[str]:
    from molt_tui.cli.output import clock
    from molt_tui.text import clean

    return [f"{clock(n['t'])}  {clean(n['who'])}  {n['action']}: {clean(n['text'])}" for n in notes]


def event_line(event: dict) -> str:
    """One event as a line: time, kind, and what it says."""
    from molt_tui.cli.output import clock
    from molt_tui.text import clean

    data = event["data"]
    words = [data.get(k) for k in ("phase", "what", "rule", "name", "why")]
    texts = [data.get(k) for k in ("detail", "message", "text", "path")]
    said = " ".join(str(w) for w in (*words, *texts) if w)
    step = f" step {event['step']}" if event["step"] is not None else ""
    return f"{clock(event['t'])}  {clean(event['kind'])}{step}  {clean(said)}".rstrip()


@app.command()
def metrics(
    run: Reference,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="metric names; none: list them")] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, help="only the newest points of each")] = None,
    as_json: Json = False,
) -> None:
    """Print the curves of metrics. Without KEY: the names and newest values."""
    from engine.wire import to_wire
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import metrics as service

    with fresh_run(run) as (store, found):
        if keys:
            service.require_keys(store, found, keys)
            curves = {key: service.series(store, found, key, last=last) for key in keys}
        else:
            newest = service.latest(store, found)
            curves = {key: [newest[key]] for key in sorted(newest, key=service.telling)}
    if as_json:
        output.emit_json([row for key, points in curves.items() for row in service.rows_json(key, points)])
        return
    rows = [(key, p.step, p.attempt, to_wire(p.value)) for key, points in curves.items() for p in points]
    output.table(("KEY", "STEP", "ATT", "VALUE"), rows, right=("STEP", "ATT"))


@app.command()
def logs(
    run: Reference,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on as lines are written, until the run ends")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many lines from the end")] = 50,
    name: Annotated[str | None, typer.Option("--log", help="which log file; see --list")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="of an older attempt")] = None,
    list_files: Annotated[bool, typer.Option("--list", help="list the log files")] = False,
    as_json: Json = False,
) -> None:
    """Print the end of a log file of the newest attempt."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.errors import Refused
    from molt_tui.services import control
    from molt_tui.services import logs as service
    from molt_tui.text import log_line

    if follow and as_json:
        raise Refused("--follow prints lines as they come; leave --json out")
    with fresh_run(run) as (_, found):
        pass
    if list_files:
        known = service.files(found)
        if as_json:
            output.emit_json([{"attempt": f.attempt, "name": f.name, "path": str(f.path), "size": f.size} for f in known])
        else:
            output.table(("ATTEMPT", "LOG", "BYTES"), [(f.attempt, f.name, f.size) for f in known], right=("ATTEMPT", "BYTES"))
        return
    file = service.pick(found, attempt=attempt, name=name)
    tail, offset = service.tail(file.path, lines)
    if as_json:
        output.emit_json({"attempt": file.attempt, "name": file.name, "lines": tail})
        return
    for line in tail:
        print(log_line(line))
    if follow:
        for line in service.follow(file.path, offset, done=lambda: control.ended(found)):
            print(log_line(line), flush=True)
