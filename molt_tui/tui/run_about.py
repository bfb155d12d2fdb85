"""The words around the table of runs: what is going on in all, in the line under the cursor, and what to press. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from molt_tui.grouping import Entry, GroupLine
from molt_tui.lines import RunLine
from molt_tui.tui import format, glyphs
from molt_tui.tui.run_table import mean_and_sd

if TYPE_CHECKING:
    from molt_tui.verdict import Verdict

COUNTED = ("running", "starting", "queued", "paused", "failed", "lost")
Span = str | tuple[str, str]


def counts(states: Mapping[str, int], alarming: int) -> list[Span]:
    """How many are in each state that matters, and how many need a look."""
    words: list[Span] = []
    if alarming:
        words += [": ", (f"{alarming} {'needs' if alarming == 1 else 'need'} a look (!)", "bold $text-warning")]
    for state in COUNTED:
        if states.get(state):
            look = glyphs.state_look(state)
            words += [", " if words else ": ", (f"{states[state]} {look.word}", look.style)]
    return words


def about(entry: Entry | None, now: float) -> list[Content]:
    """Three lines on a run or a group: which it is, how it fares, what to press."""
    if entry is None:
        return []
    return _about_group(entry) if isinstance(entry, GroupLine) else _about_run(entry)


def _about_run(run: RunLine) -> list[Content]:
    member = [run.name, run.id] if run.group else [run.id]  # an id has no room for the whole name of one of a sweep
    facts = [*member, run.recipe, f"group {run.group}" if run.group else "", f"attempt {run.attempts}" if run.attempts else "",
             f"job {run.job_id}" if run.job_id else "", run.host]  # fmt: skip
    last = verdict_of(run).action
    note = Content.styled(f"   note: {run.note}" if run.note else "", "$text-accent")
    return [Content.styled("  ".join(f for f in facts if f), "$quiet"), fares(run), Content.styled(f"  {last}", "$quiet") + note]


def verdict_of(run: RunLine) -> Verdict:
    """How a run fares, or how it ended and what can be done."""
    if run.verdict is not None:
        return run.verdict
    from molt_tui.facts import Facts
    from molt_tui.verdict import headline

    return headline(Facts(run.state, run.detail, run.step, max_steps=run.max_steps, last_checkpoint=run.last_checkpoint))


def fares(run: RunLine) -> Content:
    """The verdict in words, with its mark."""
    found = verdict_of(run)
    return Content.styled(f"{glyphs.MARK[found.level]} {found.text}", glyphs.LEVEL_STYLE[found.level])


def _about_group(group: GroupLine) -> list[Content]:
    states = ", ".join(f"{count} {glyphs.state_look(state).word}" for state, count in group.states)
    spread, best = group.reward, group.best
    figures = [] if spread is None else [f"reward {mean_and_sd(spread)}, n={spread.n}"]
    figures += [f"{spread.lost} not finite"] if spread is not None and spread.lost else []
    figures += [f"best {format.number(best.reward)} {best.name}"] if best is not None else []
    worst = Content.assemble((f"{group.worst.name}: ", "bold"), fares(group.worst))
    live = sum(run.active for run in group.runs)
    stops = f"x stops {f'all {live}' if live == len(group.runs) else f'the {live} at work'}, " if live else ""
    keys = f"enter unfolds or folds it, {stops}v compares it"
    return [Content.assemble((f"{group.name}  ", "bold"), (f"{states}   {', '.join(figures)}", "$quiet")), worst,
            Content.styled(f"  {keys}", "$quiet")]  # fmt: skip


def next_trouble(rows: Sequence[tuple[Entry, bool]], cursor: int) -> RunLine | None:
    """The next run below the cursor (then from the top) that needs a look: those at work first, then failed and lost ones."""
    order = [*rows[cursor + 1 :], *rows[: cursor + 1]]
    known = [run for entry, _ in order for run in (entry.runs if isinstance(entry, GroupLine) else (entry,))]
    here = rows[cursor][0] if 0 <= cursor < len(rows) else None
    sick = [run for run in known if run.alarming] or [run for run in known if run.state in ("failed", "lost")]
    return next((run for run in sick if run is not here), sick[0] if sick else None)


def compared(marked: Sequence[RunLine], rows: Iterable[tuple[Entry, bool]]) -> list[str]:
    """References for the Compare screen: a group all of whose runs are marked is one, every other run is itself."""
    ids = {run.id for run in marked}
    refs: list[str] = []
    for entry, _ in rows:
        if isinstance(entry, GroupLine) and ids >= {run.id for run in entry.runs}:
            refs.append(f"group:{entry.name}")
            ids -= {run.id for run in entry.runs}
    return [*refs, *(run.id for run in marked if run.id in ids)]
