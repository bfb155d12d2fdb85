"""Commands about molt-tui itself: doctor, db."""

from __future__ import annotations

from typing import Annotated

import typer

from molt_tui.cli.app import Json, app

db = typer.Typer(help="The database: a cache of what is in the run directories.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(db, name="db")


@app.command()
def doctor(
    as_json: Json = False,
    write_site: Annotated[
        bool, typer.Option("--write-site", help="write a site profile from what the cluster reports, and print it")
    ] = False,
) -> None:
    """Check this machine. What molt-tui needs, and what to change."""
    from molt_tui.cli import output

    if write_site:
        from molt_tui.services.slurm import propose_site

        path, text = propose_site()
        output.say(f"wrote {path}; look through it, and change what does not fit")
        print(text, end="")
        return
    from molt_tui.services.doctor import run_checks

    checks = run_checks()
    if as_json:
        output.emit_json([{"check": c.check, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in checks])
    else:
        output.table(("CHECK", "OK", "DETAIL"), [(c.check, "yes" if c.ok else "NO", c.detail) for c in checks])
        for check in checks:
            if check.fix:
                print(f"{check.check}: {output.cell(check.fix)}")
    if not all(c.ok or not c.needed for c in checks):
        raise typer.Exit(1)


@app.command()
def keys(as_json: Json = False) -> None:
    """Every key of the screen and the id by which tui.toml can give it another one."""
    from molt_tui.cli import output
    from molt_tui.tui.keymap import all_keys

    found = all_keys()
    if as_json:
        output.emit_json([{"id": key.id, "keys": key.keys, "what": key.what} for key in found])
    else:
        output.table(("ID", "KEYS", "WHAT"), [(key.id, key.keys, key.what) for key in found])


@db.command()
def ingest(as_json: Json = False) -> None:
    """Read what is new in the run directories."""
    from molt_tui.services.runs import refresh
    from molt_tui.store.database import open_store
    from molt_tui.store.home import find_home

    with open_store(find_home()) as store:
        report = refresh(store, rollouts=True)
    _print_report(report, as_json)


@db.command()
def rebuild(as_json: Json = False) -> None:
    """Make the database again from the run directories."""
    from molt_tui.store.home import find_home
    from molt_tui.store.rebuild import rebuild as build

    _print_report(build(find_home()), as_json)


@db.command()
def path(as_json: Json = False) -> None:
    """Print where the database is."""
    from molt_tui.cli import output
    from molt_tui.store.home import find_home

    database = str(find_home().database)
    if as_json:
        output.emit_json({"path": database})
    else:
        print(output.cell(database))


def _print_report(report: object, as_json: bool) -> None:
    from dataclasses import asdict

    from molt_tui.cli import output

    numbers = asdict(report)  # type: ignore[call-overload]
    problems = numbers.pop("problems")
    if as_json:
        output.emit_json({**numbers, "problems": problems})
    else:
        output.pairs(list(numbers.items()))
    for problem in problems:
        output.say(f"skipped {problem}")
