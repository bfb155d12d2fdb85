"""The most frequent command, `runs`, apart from typer, which takes longer to start than the answer takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from molt_tui.cli import output
from molt_tui.cli.session import fresh_store
from molt_tui.errors import Refused
from molt_tui.filters import FilterError, parse
from molt_tui.grouping import ORDERS, GroupLine, arrange, fold
from molt_tui.lines import RunLine
from molt_tui.services import runs
from molt_tui.services.lines import make_line

if TYPE_CHECKING:
    from molt_tui.services.runs import Run
    from molt_tui.store.database import Store
    from molt_tui.verdict import Verdict

CANNOT_START = "it cannot start"
COLUMNS = ("ID", "STATE", "STEP", "REWARD", "HEALTH", "AGE", "ATT", "RECIPE", "GROUP", "NAME", "TAGS")
GROUP_COLUMNS = ("GROUP", "RUNS", "STATES", "REWARD", "SD", "N", "BEST")


def print_runs(
    as_json: bool, limit: int | None = None, only: str = "", sort: str = "newest", reverse: bool = False, grouped: bool = False
) -> None:
    """Print the runs that a filter lets through, in one of the orders of the Runs screen. Raises Refused."""
    try:
        chosen = parse(only)
    except FilterError as error:
        raise Refused(f"--filter: {error}") from error
    if sort not in ORDERS:
        raise Refused(f"--sort {sort!r}: one of {', '.join(ORDERS)}")
    now = time.time()
    with fresh_store() as store:
        known = runs.news(store).runs
        health = _health(store, [run for run, _, _ in known])
    lines = {}
    for run, seen, note in known:
        verdict = health[run.id][0] if health.get(run.id) else None
        line = make_line(run, seen, note, now, verdict)
        if chosen.matches(line, now):
            lines[id(line)] = (run, line)
    entries = arrange(
        fold(line for _, line in lines.values()) if grouped else [line for _, line in lines.values()], sort, reverse
    )
    if grouped:
        _print_groups([entry for entry in entries if isinstance(entry, GroupLine)][:limit], as_json)
        return
    shown = [lines[id(entry)] for entry in entries][:limit]
    if as_json:
        output.emit_json([runs.as_json(run) | {"alerts": alerts_json(health.get(run.id, []))} for run, _ in shown])
    elif not shown:
        output.say("no run matches" if known else "no runs yet; start one with `molt-tui demo` or `molt-tui launch RECIPE`")
    else:
        rows = [_row(run, line, word_of(health.get(run.id)), now) for run, line in shown]
        output.table(COLUMNS, rows, right=("STEP", "REWARD", "AGE", "ATT"))
        for run, _ in shown:
            if run.state == "queued" and run.detail.startswith(CANNOT_START):
                output.say(f"{run.id}: {run.detail}")


def _row(r: Run, line: RunLine, health: str | None, now: float) -> tuple:
    said = line.age(now)
    age = output.MISSING if said is None else output.age(now - said, now)
    progressed = progress(r.step, r.max_steps)
    return (r.id, r.state, progressed, r.reward, health, age, r.attempts, r.recipe, r.group, r.name, " ".join(r.tags))


def _print_groups(groups: Sequence[GroupLine], as_json: bool) -> None:
    """Groups of at least two runs."""
    from engine.wire import to_wire

    found = [(g, g.reward, g.best) for g in groups]
    if as_json:
        output.emit_json(to_wire([
            {"group": g.name, "runs": [run.id for run in g.runs], "states": dict(g.states), "best": best.id if best else None,
             "reward": None if s is None else {"mean": s.mean, "sd": s.sd, "n": s.n, "lost": s.lost}} for g, s, best in found
        ]))  # fmt: skip
        return
    if not groups:
        output.say("no group has two runs here")
        return
    rows = [(g.name, len(g.runs), ", ".join(f"{n} {state}" for state, n in g.states), s.mean if s else None, s.sd if s else None,
             s.n if s else None, best.name if best else None) for g, s, best in found]  # fmt: skip
    output.table(GROUP_COLUMNS, rows, right=("RUNS", "REWARD", "SD", "N"))


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
