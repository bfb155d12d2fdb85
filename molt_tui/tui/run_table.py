"""What each cell of the Runs screen says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from molt_tui.bands import Spread, band_by_step
from molt_tui.grouping import Entry, GroupLine
from molt_tui.lines import RunLine
from molt_tui.tui import format, glyphs
from molt_tui.tui.widgets.key_table import Cell, Column

if TYPE_CHECKING:
    from molt_tui.tui.source import Trend

NARROW = (Column("", 1), Column("State", 13), Column("Name", both_ends=True), Column("Step", 9, True), Column("Reward", 11, True),
          Column("Trend", 8), Column("Age", 5, True), Column("Alert/tag", 9))  # fmt: skip
WIDE = (Column("", 1), Column("State", 14), Column("Alert", 17), Column("Name", both_ends=True), Column("Step", 11, True),
        Column("Reward", 12, True), Column("Trend", 14), Column("Att", 3, True), Column("Age", 5, True), Column("Job", 9),
        Column("Recipe", 12), Column("Tags", 14))  # fmt: skip
LABELS = {"state": "State", "name": "Name", "step": "Step", "reward": "Reward", "age": "Age", "attempts": "Att", "job": "Job"}


@dataclass(frozen=True)
class Look:
    """What the cells depend on beside the entry: `now` on the reader's clock, marked run ids, open groups, curves."""

    wide: bool
    now: float
    marked: frozenset[str]
    opened: frozenset[str]
    trends: Mapping[str, Trend]
    ascii: bool = False


def cells(entry: Entry, member: bool, look: Look) -> tuple[Cell, ...]:
    return _group_cells(entry, look) if isinstance(entry, GroupLine) else _run_cells(entry, member, look)


def _run_cells(run: RunLine, member: bool, look: Look) -> tuple[Cell, ...]:
    mark = glyphs.MARKED if run.id in look.marked else " "
    state = glyphs.state_look(run.state).word
    reward = "-" if run.reward is None else format.number(run.reward)
    sick = run.reward is not None and not isfinite(run.reward)
    trend = [y for _, y in look.trends.get(run.id, ())]
    figures = format.progress(run.step, run.max_steps), reward, sick, trend, run.age(look.now)
    about = str(run.attempts or "-"), run.job_id or "-", run.recipe
    return _row(mark, _marked_state(run, state), ("  " * member + run.name, ""), figures, run, about, run.tags, look)


def _group_cells(group: GroupLine, look: Look) -> tuple[Cell, ...]:
    """The worst state with how many are in it; mean and spread of the rewards; the mean curve; tags that all have."""
    worst, total = group.worst, len(group.runs)
    same, word = sum(run.state == worst.state for run in group.runs), glyphs.state_look(worst.state).word
    state = _marked_state(worst, word if same == total else f"{same} {word}")
    marked = sum(run.id in look.marked for run in group.runs)
    mark = glyphs.MARKED if marked == total else glyphs.HALF_MARKED if marked else " "
    arrow = glyphs.UNFOLDED if group.name in look.opened else glyphs.FOLDED
    ages = [age for run in group.runs if (age := run.age(look.now)) is not None]
    trend = mean_trend([look.trends[run.id] for run in group.runs if run.id in look.trends])
    sick = group.reward is not None and group.reward.lost > 0
    figures = _steps(group), mean_and_sd(group.reward, ascii=look.ascii), sick, trend, min(ages, default=None)
    recipes = {run.recipe for run in group.runs}
    recipe = recipes.pop() if len(recipes) == 1 else f"{len(recipes)} recipes"
    about = str(max(run.attempts for run in group.runs) or "-"), "", recipe
    tags = [tag for tag in worst.tags if all(tag in run.tags for run in group.runs)]
    return _row(mark, state, (f"{arrow} {group.name} ×{total}", "bold"), figures, worst, about, tags, look)


def _marked_state(run: RunLine, words: str) -> Cell:
    """Glyph and colour of the state, or of the verdict when it is alarming."""
    shown = glyphs.state_look(run.state)
    if run.alarming and run.verdict is not None:
        return f"{glyphs.MARK[run.verdict.level]} {words}", glyphs.LEVEL_STYLE[run.verdict.level]
    return f"{shown.glyph} {words}", shown.style


def _row(mark: str, state: Cell, name: Cell, figures: tuple[str, str, bool, Sequence[float], float | None], run: RunLine,
         about: tuple[str, str, str], tags: Sequence[str], look: Look) -> tuple[Cell, ...]:  # fmt: skip
    """The cells in the order of the columns; an alarming verdict stands by its rule's name."""
    step, reward, sick, curve, age = figures
    alert = (run.verdict.rule, glyphs.LEVEL_STYLE[run.verdict.level]) if run.verdict is not None and run.alarming else None
    trend = (glyphs.sparkline(curve, 14 if look.wide else 8), "$text-accent")
    numbers = (step, ""), (reward, "bold $text-error" if sick else ""), trend
    marked, old, labels = (mark, "bold $text-accent"), (format.age(age), "$quiet"), (", ".join(tags), "$quiet")
    if not look.wide:
        return marked, state, name, *numbers, old, alert or labels
    attempts, job, recipe = about
    rest = (attempts, ""), old, (job, "$quiet"), (recipe, "$quiet"), labels
    return marked, state, alert or ("", ""), name, *numbers, *rest


def _steps(group: GroupLine) -> str:
    """The range of steps; with the planned number where it is one and fits."""
    steps = [run.step for run in group.runs if run.step is not None]
    if not steps:
        return "-"
    low, high = min(steps), max(steps)
    plans = {run.max_steps for run in group.runs}
    plan = plans.pop() if len(plans) == 1 else None
    if low != high:
        return f"{low}-{high}"
    return format.progress(low, plan)


def mean_and_sd(found: Spread | None, *, ascii: bool = False) -> str:
    """Mean ± standard deviation; NaN where no value is finite, a dash where none was reported. In ASCII the sign has two cells,
    and the mean a digit less."""
    if found is None:
        return "-"
    if found.n == 0:
        return "NaN"
    if found.sd is None:
        return format.number(found.mean)
    mean = f"{format.number(found.mean, 2)}+-" if ascii else f"{format.number(found.mean, 3)}±"
    return mean + format.number(found.sd, 2)


def mean_trend(curves: Sequence[Trend]) -> list[float]:
    """The mean over runs at every step that at least half of them have, so that one run ahead does not bend the line."""
    return [point.mean for point in band_by_step(curves) if 2 * point.n >= len(curves)]
