"""Recorded rollouts of a run: one step, every step, or what a search found; sorted by what one looks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from molt_tui.tokens import ORDERS
from molt_tui.tui import clipboard, format
from molt_tui.tui.data_source import TraceLine, TraceView
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row

STEP = Column("Step", 6, True)
FIGURES = (Column("Reward", 7, True), Column("Adv.", 7, True), Column("Length", 7, True), Column("Masked", 7, True),
           Column("Ratio", 6, True), Column("Experts", 8, True), Column("Stale", 6, True))  # fmt: skip
NARROW = (Column("Prompt"), *FIGURES)
WIDE = (Column("Prompt", 30), *FIGURES, Column("Response"))
SORTED_COLUMN = {"reward": "Reward", "length": "Length", "masked": "Masked", "ratio": "Ratio", "experts": "Experts",
                 "staleness": "Stale"}  # fmt: skip
PREVIEW_LINES = 5


def ratio(value: float | None) -> str:
    """A ratio in at most 6 characters; one with no more than rounding away from 1 says so."""
    if value is None:
        return "-"
    if 0.01 <= value < 1000:
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return format.number(value, 2)


def share(part: float | None, whole: float | None) -> str:
    return "-" if part is None or not whole else format.share(part / whole).replace(" ", "")


def number(value: float | None, words: Callable[[float], str] = format.number) -> str:
    return "-" if value is None else words(value)


def cells(line: TraceLine, wide: bool) -> tuple[Cell, ...]:
    f = line.figures
    reward = f["reward"]
    good = "" if reward is None or f["advantage"] is None else "$text-success" if f["advantage"] > 0 else ""
    far = f["ratio_extreme"]
    alarm = "$text-warning" if far is not None and abs(math.log(max(far, 1e-300))) >= math.log(2) else ""
    figures = ((number(reward), good or ("$text-error" if reward is None else "")),
               (number(f["advantage"], format.advantage), ""),
               (number(f["sampled"]) + ("+" if line.truncated else ""), ""),
               (share(f["masked"], f["sampled"]), "$text-warning" if f["masked"] else ""), (ratio(far), alarm),
               (share(f["mismatched"], f["sampled"]), ""), (number(f["staleness_max"]), ""))  # fmt: skip
    return ((line.prompt_id, ""), *figures, (line.response, "$quiet")) if wide else ((line.prompt_id, ""), *figures)


class TracesScreen(MoltScreen):
    TITLE = "Traces"
    PART = True
    HELP = (
        "Recorded rollouts, one a line. Advantage: what the rollout's tokens were trained with. Masked: sampled tokens that were"
        " not trained. Ratio: trainer/sampler of the token where they differ most. Experts: tokens for which the router chose"
        " other experts than the sampler. Stale: versions between the oldest token and the trainer. Length with +: cut off.\n\n"
        "Enter shows a rollout token by token, v the rollouts of its group side by side."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket,left,h", "step(-1)", "Step before", show=False, id="traces.before"),
        Binding("right_square_bracket,right,l", "step(1)", "Next step", id="traces.next"),
        Binding("s", "sort", "Sort", id="traces.sort"),
        Binding("S", "reverse", "Reverse", show=False, id="traces.reverse"),
        Binding("slash", "search", "Search", id="traces.search"),
        Binding("a", "all", "All steps", id="traces.all"),
        Binding("v", "group", "Group", id="traces.group"),
        Binding("y", "copy", "Copy text", show=False, id="traces.copy"),
        Binding("escape,backspace", "back", "Back", id="traces.back"),
    ]

    def __init__(self, run_id: str, step: int | None = None) -> None:
        super().__init__()
        self.run_id, self.step = run_id, step
        self.view: TraceView | None = None
        self.lines: dict[str, TraceLine] = {}
        self.order, self.reversed = "recorded", False
        self.everything, self.words = False, ""
        self.problem: str | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield KeyTable(NARROW, id="table", empty="  reading rollouts ...")
        yield Static("", id="preview", markup=False)
        yield Input(
            placeholder="text to find in the rollouts of every step; empty shows one step again", id="filter", compact=True
        )
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(KeyTable).focus()

    def on_resize(self, event: events.Resize) -> None:
        self._fill()

    @property
    def wide(self) -> bool:
        return self.app.size.width >= 120

    @property
    def selected(self) -> TraceLine | None:
        return self.lines.get(self.query_one(KeyTable).cursor_key or "")

    def look(self) -> None:
        """A recorded step does not change: only what is still missing is asked for, and in a live run the list of steps."""
        if self.view is None or not (self.everything or self.words):
            self.load()

    def load(self) -> None:
        source, run, order, back = self.molt.source, self.run_id, self.order, self.reversed
        if self.everything or self.words:
            # It may have to read every recorded file first: beside the reader, which the other screens need.
            words = self.words
            self.molt.background.act(self, "all", lambda: source.all_traces(run, words, order, back))
        else:
            self.ask("traces", partial(source.traces, run, self.step, order, back))

    def answered(self, topic: str, value: TraceView) -> None:
        if (topic == "all") != bool(self.everything or self.words):
            return  # the answer to a question that is no longer asked
        self.view, self.problem = value, None
        self.step = value.step if value.step is not None else self.step
        self.lines = {line.key: line for line in value.lines}
        self.refresh_bindings()
        self._fill()

    def failed(self, topic: str, error: str) -> None:
        self.problem = error
        self._fill()

    def _fill(self) -> None:
        table = self.query_one(KeyTable)
        several = bool(self.everything or self.words)
        columns = (*((STEP,) if several else ()), *(WIDE if self.wide else NARROW))
        named = SORTED_COLUMN.get(self.order)
        mark = "▲" if ORDERS[self.order] == self.reversed else "▼"
        table.set_columns(
            [Column(f"{mark}{c.label}"[: c.width or 99], c.width, c.right) if c.label == named else c for c in columns]
        )
        if self.view is not None or self.problem:
            table.set_empty(f"  {self.problem or ('no rollout contains this text' if self.words else 'no rollouts')}")
        wide = self.wide
        table.set_rows([
            Row(key, (*(((str(line.place.step), "$quiet"),) if several else ()), *cells(line, wide)))
            for key, line in self.lines.items()
        ])  # fmt: skip
        self._show_top()
        self._show_preview()

    def _show_top(self) -> None:
        view = self.view
        if view is None:
            update(
                self.query_one("#top", Static), Content.assemble((" Traces ", "bold reverse"), f"  {self.problem or 'reading'}")
            )
            return
        steps = f"{view.steps[0]}-{view.steps[-1]}" if view.steps else "none"
        if self.words:
            where = f"{len(view.lines)}{'+' if view.limited else ''} rollouts with {self.words!r}"
        elif not view.steps:
            where = "none recorded (trace.rollouts_per_step)"
        elif self.everything:
            where = f"{len(view.lines)}{'+' if view.limited else ''} rollouts of every step"
        else:
            place = f"{view.steps.index(view.step) + 1} of {len(view.steps)}" if view.step in view.steps else "?"
            where = f"step {view.step}: {len(view.lines)} rollouts  ({place} steps recorded, {steps})"
        order = "as recorded" if self.order == "recorded" else f"by {self.order}"
        state = f"  {order}{', reversed' if self.reversed else ''}"
        trouble = (f"  {self.problem}", "bold $text-error") if self.problem else ""
        update(self.query_one("#top", Static), Content.assemble(
            (" Traces ", "bold reverse"), " ", (view.name, "bold"), f"  {where}", (state, "$quiet"), trouble))  # fmt: skip

    def _show_preview(self) -> None:
        """The rollout under the cursor: what was asked, what was answered, and what was expected."""
        line, preview = self.selected, self.query_one("#preview", Static)
        if line is None:
            update(preview, Content(""))
            return
        width = max(20, self.app.size.width - 2)
        f = line.figures
        facts = [
            f"reward {number(f['reward'])}",
            f"score {number(f['score'])}",
            f"{number(f['turns'])} turn{'' if f['turns'] == 1 else 's'}",
            line.info,
        ]
        expected = Content.assemble(("expected ", "$quiet"), (line.expected, "bold")) if line.expected else Content("")
        head = Content.assemble((line.rollout, "bold"), "  ", ("  ".join(p for p in facts if p), "$quiet"))
        room = width * (PREVIEW_LINES - 2)
        prompt = line.prompt[-max(width, room - min(len(line.response), room - width)) :]
        words = Content.assemble((prompt, "$quiet"), ("⟩ " if prompt else "", "$text-accent"), line.response)
        found = words.plain.lower().find(self.words.lower()) if self.words else -1
        if found >= 0:
            words = words.stylize("bold reverse", found, found + len(self.words))
        update(preview, Content("\n").join([head, expected, words.truncate(room - 2, ellipsis=True)]))

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_preview()

    @on(KeyTable.Chosen)
    def _chosen(self) -> None:
        line = self.selected
        if line is not None:
            self.molt.open_tokens(self.run_id, line.place, tuple(x.place for x in self.lines.values()))

    @on(Input.Submitted, "#filter")
    def _searched(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = False
        self.query_one(KeyTable).focus()
        if box.value != self.words:
            self.words = box.value
            self._again()

    def _again(self) -> None:
        """Another list: nothing of the old one stays."""
        self.lines, self.view = {}, None
        table = self.query_one(KeyTable)
        table.set_empty("  searching ..." if self.words else "  reading rollouts ...")
        table.set_rows([])
        self._show_preview()
        self.load()

    def action_search(self) -> None:
        box = self.query_one("#filter", Input)
        box.value, box.display = self.words, True
        box.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The next step is offered where there is one."""
        view = self.view
        if action == "step" and parameters[0] == 1 and view is not None:
            return not (self.words or self.everything) and view.step != (view.steps[-1] if view.steps else None)
        return super().check_action(action, parameters)

    def action_step(self, by: int) -> None:
        view = self.view
        if view is None or self.words or self.everything or not view.steps:
            return
        at = view.steps.index(view.step) if view.step in view.steps else len(view.steps) - 1
        if not 0 <= at + by < len(view.steps):
            self.notify(f"step {view.step} is the {'last' if by > 0 else 'first'} one recorded", timeout=2)
            return
        self.step = view.steps[at + by]
        self.load()

    def action_all(self) -> None:
        self.everything = not self.everything
        self.words = ""
        if self.everything and self.order == "recorded":
            self.order = "ratio"
        self._again()

    def action_sort(self) -> None:
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + 1) % len(names)]
        self.load()

    def action_reverse(self) -> None:
        self.reversed = not self.reversed
        self.load()

    def action_group(self) -> None:
        line = self.selected
        if line is not None:
            self.molt.open_group(self.run_id, line.place)

    def action_copy(self) -> None:
        line = self.selected
        if line is not None:
            clipboard.copy(self.app, f"{line.prompt}{line.response}", "prompt and response")

    def action_back(self) -> None:
        """One level: out of the search box, out of the search, out of all steps, to the screen before."""
        box = self.query_one("#filter", Input)
        if box.display:
            box.display = False
            self.query_one(KeyTable).focus()
        elif self.words or self.everything:
            self.words, self.everything = "", False
            self._again()
        else:
            self.molt.go_back()
