"""Home: every run in one table, its state first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Footer, Input, Static

from molt_tui.tui import format, glyphs
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.controls import RunControls
from molt_tui.tui.source import RunLine
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row

NARROW = (Column("State", 11), Column("Name"), Column("Step", 9, True), Column("Reward", 7, True), Column("Trend", 10),
          Column("Age", 5, True), Column("Group, tags", 13))  # fmt: skip
WIDE = (Column("State", 11), Column("Name", 28), Column("Step", 11, True), Column("Reward", 8, True),
        Column("Trend", 20), Column("Version", 7, True), Column("Att", 3, True), Column("Age", 5, True),
        Column("Recipe", 20), Column("Group, tags"))  # fmt: skip

SORTS: dict[str, tuple[Callable[[RunLine], Any], bool]] = {
    "newest": (lambda r: r.created, True),
    "state": (lambda r: (STATE_ORDER.get(r.state, 9), -r.created), False),
    "name": (lambda r: (r.name, r.id), False),
    "reward": (lambda r: r.reward if r.reward is not None and isfinite(r.reward) else float("-inf"), True),
    "step": (lambda r: -1 if r.step is None else r.step, True),
}
STATE_ORDER = {"failed": 1, "lost": 1, "running": 2, "paused": 2, "stopping": 2, "starting": 3, "queued": 4}


def cells(run: RunLine, wide: bool) -> tuple[Cell, ...]:
    look = glyphs.state_look(run.state)
    labels = ", ".join(x for x in (run.group or "", *run.tags) if x)
    reward = "-" if run.reward is None else format.number(run.reward)
    glyph, style = look.glyph, look.style
    if run.verdict is not None and run.verdict.alarming:
        glyph, style = glyphs.MARK[run.verdict.level], glyphs.LEVEL_STYLE[run.verdict.level]
    head = (f"{glyph} {look.word}", style), (run.name, ""), (format.progress(run.step, run.max_steps), "")
    alarm = "bold $text-error" if run.reward is not None and not isfinite(run.reward) else ""
    trend = (glyphs.sparkline(run.rewards, 20 if wide else 10), "$text-accent")
    age, group = (format.age(run.age_s), "$quiet"), (labels, "$quiet")
    if not wide:
        return *head, (reward, alarm), trend, age, group
    version = ("-" if run.version is None else f"v{run.version}", "")
    return *head, (reward, alarm), trend, version, (str(run.attempts or "-"), ""), age, (run.recipe, "$quiet"), group


def fares(run: RunLine) -> list[Cell]:
    """How a run fares in words: an active one's verdict, else its state and the reason."""
    look = glyphs.state_look(run.state)
    if run.verdict is not None:
        first = run.verdict
        return [(f"{glyphs.MARK[first.level]} {first.text}", glyphs.LEVEL_STYLE[first.level])]
    return [(f"{look.glyph} {look.word}", look.style), (f"  {run.detail}" if run.detail else "", "")]


def matches(run: RunLine, text: str) -> bool:
    """Every word of the filter is part of the id, name, state, group, recipe or a tag; `!word` must not be."""
    look = glyphs.state_look(run.state)
    hay = " ".join((run.id, run.name, run.state, look.word, run.group or "", run.recipe, *run.tags)).lower()
    return all((word[1:] not in hay) if word.startswith("!") and word[1:] else word in hay for word in text.lower().split())


class RunsScreen(RunControls, MoltScreen):
    TITLE = "Runs"
    HELP = (
        "Every run known here, newest first. Closing molt-tui changes nothing for them.\n"
        "The filter looks in id, name, state, group, recipe and tags; !word leaves out. Example: running !moe"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "launch", "New run", id="runs.launch"),
        Binding("slash", "filter", "Filter", id="runs.filter"),
        Binding("s", "sort", "Sort", id="runs.sort"),
        *RunControls.CONTROLS,
        Binding("escape", "clear_filter", "Clear filter", show=False, id="runs.clear_filter"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, RunLine] = {}
        self.order = "newest"
        self.stale: str | None = None
        self.loaded = False

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield KeyTable(NARROW, id="table", empty="  reading runs ...")
        yield Static("", id="about", markup=False)
        yield Input(placeholder="part of a name, state, group or tag; !word leaves out", id="filter", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(KeyTable).focus()

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(KeyTable).set_columns(WIDE if self.wide else NARROW)
        self.fill()

    @property
    def wide(self) -> bool:
        return self.app.size.width >= 130

    @property
    def selected(self) -> RunLine | None:
        return self.lines.get(self.query_one(KeyTable).cursor_key or "")

    def look(self) -> None:
        self.ask("runs", self.molt.source.runs)

    def answered(self, topic: str, value: Sequence[RunLine]) -> None:
        self.lines = {run.id: run for run in value}
        self.loaded, self.stale = True, None
        self.fill()

    def failed(self, topic: str, error: str) -> None:
        self.stale = error
        self.fill()

    def fill(self) -> None:
        """Filter, sort and show; the table keeps its cursor by key."""
        text = self.query_one("#filter", Input).value
        key, reverse = SORTS[self.order]
        shown = sorted((r for r in self.lines.values() if matches(r, text)), key=key, reverse=reverse)
        table = self.query_one(KeyTable)
        if self.loaded:
            table.set_empty(f"  no run matches {text!r}; esc clears the filter" if self.lines else
                            "  no run yet: press n to launch one, or leave and try `molt-tui demo`")  # fmt: skip
        table.set_rows([Row(run.id, cells(run, self.wide)) for run in shown])
        self._show_top(len(shown), text)
        self._show_about()

    def _show_top(self, shown: int, text: str) -> None:
        states = [glyphs.state_look(r.state).word for r in self.lines.values()]
        notable = [w for w in ("running", "paused", "failed", "lost") if w in states]
        counts = ", ".join(f"{states.count(w)} {w}" for w in notable)
        total = f"{shown} of {len(states)} runs match {text!r}" if text else f"{len(states)} runs"
        if self.stale:
            line = (f"  not refreshed: {self.stale}", "bold $text-error")
        else:
            line = f"  {total}" + (f": {counts}" if counts and not text else "")
        update(self.query_one("#top", Static), Content.assemble(
            (" molt-tui ", "bold reverse"), line, (f"   by {self.order}", "$quiet")))  # fmt: skip

    def _show_about(self) -> None:
        """The highlighted run in two lines: what it is, and why it is in its state."""
        run = self.selected
        if run is None:
            update(self.query_one("#about", Static), Content(""))
            return
        facts = [run.id, run.recipe, f"attempt {run.attempts}" if run.attempts else "", f"job {run.job_id}" if run.job_id else "",
                 run.host]  # fmt: skip
        first = "  ".join(f for f in facts if f)
        second = Content.assemble(*fares(run))
        update(self.query_one("#about", Static), Content("\n").join([Content.styled(first, "$quiet"), second]))

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_about()

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        self.molt.open_run(event.key)

    @on(Input.Changed, "#filter")
    def _typed(self) -> None:
        self.fill()

    @on(Input.Submitted, "#filter")
    def _kept(self) -> None:
        self.query_one("#filter").display = bool(self.query_one("#filter", Input).value)
        self.query_one(KeyTable).focus()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_clear_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        self.query_one(KeyTable).focus()

    def action_sort(self) -> None:
        names = list(SORTS)
        self.order = names[(names.index(self.order) + 1) % len(names)]
        self.fill()

    def action_launch(self) -> None:
        self.molt.open_launch()


def update(widget: Static, content: Content) -> None:
    """Change a Static only when its text or styles differ, so that nothing is redrawn for nothing."""
    if getattr(widget, "_shown", None) != (content.plain, content.spans):
        widget._shown = (content.plain, list(content.spans))  # type: ignore[attr-defined]
        widget.update(content)
