"""Home: every run in one table, its state first; groups folded, filtered, sorted, marked."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from molt_tui import filters
from molt_tui.filters import Filter, FilterError
from molt_tui.grouping import GROUP_KEY, ORDERS, Entry, GroupLine, arrange, fold, unfolded
from molt_tui.lines import RunLine
from molt_tui.text import clean
from molt_tui.tui import glyphs, run_about, run_table
from molt_tui.tui.run_table import Look
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.marks import MarkControls
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable

if TYPE_CHECKING:
    from molt_tui.tui.source import Trend

WIDE_FROM = 140
TRENDS_KEPT = 500


class RunsScreen(MarkControls, MoltScreen):
    TITLE = "Runs"
    CSS_PATH = None
    HELP = (
        "Every run known here, newest first. Closing molt-tui changes nothing for them. Runs of one group are one line: mean ±"
        " standard deviation of their rewards; enter or f unfolds it. ! goes to the next run that needs a look.\n\n"
        f"The filter: {filters.HELP}.\n\n"
        "space marks; x, t, a, v and D then act on all that are marked, else on the line under the cursor."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "launch", "New run", id="runs.launch"),
        Binding("slash", "filter", "Filter", id="runs.filter"),
        Binding("s", "sort", "Sort", show=False, id="runs.sort"),
        Binding("i", "flip", "Sort the other way", show=False, id="runs.flip"),
        Binding("space", "mark", "Mark", id="runs.mark"),
        Binding("f", "fold", "Fold", show=False, id="runs.fold"),
        Binding("F", "fold_all", "Fold all", show=False, id="runs.fold_all"),
        Binding("exclamation_mark", "next_trouble", "Next trouble", show=False, id="runs.trouble"),
        Binding("l", "log", "Log", show=False, id="runs.log"),
        Binding("v", "compare", "Compare (versus)", show=False, id="runs.compare"),
        *MarkControls.MARK_CONTROLS,
        *MarkControls.CONTROLS,
        Binding("escape", "clear", "Clear filter, then marks", show=False, id="runs.clear_filter"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, RunLine] = {}
        self.filter = Filter()
        self.wrong: str | None = None
        self.order, self.flipped = "newest", False
        self.marked: set[str] = set()
        self.opened: set[str] = set()
        self.trends: dict[str, tuple[RunLine, Trend]] = {}
        self.stale: str | None = None
        self.loaded = False
        self._anchor: str | None = None  # where the cursor was when the filter was opened: it comes back as soon as it can
        self._matching: dict[str, tuple[RunLine, bool]] = {}
        self._shown: dict[str, tuple[Entry, bool]] = {}
        self._look = Look(False, 0.0, frozenset(), frozenset(), {})

    def compose(self) -> ComposeResult:
        yield Static(self._top(), id="top", markup=False)
        yield KeyTable(self._columns(), id="table", empty="  reading runs ...")
        yield Static("", id="selected", markup=False)
        yield Input(placeholder="state:running reward:>0.5 tag:moe age:<2d -group:old* words", id="filter", compact=True,
                    select_on_focus=False)  # fmt: skip
        yield Static("", id="filter-error", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#filter").display = self.query_one("#filter-error").display = False
        self.query_one(KeyTable).focus()

    def on_resize(self, event: events.Resize) -> None:
        self._set_columns()
        self.fill()

    @property
    def wide(self) -> bool:
        return self.app.size.width >= WIDE_FROM

    @property
    def entry(self) -> Entry | None:
        """What the cursor is on; nothing before there is a table."""
        if not self._shown:
            return None
        found = self._shown.get(self.query_one(KeyTable).cursor_key or "")
        return found[0] if found else None

    @property
    def selected(self) -> RunLine | None:
        entry = self.entry
        return entry.worst if isinstance(entry, GroupLine) else entry

    def targets(self) -> list[RunLine]:
        """The marked runs, else those of the group under the cursor, else the run there."""
        if self.marked:
            return sorted((self.lines[i] for i in self.marked if i in self.lines), key=lambda r: (r.created, r.id), reverse=True)
        entry = self.entry
        return [] if entry is None else list(entry.runs) if isinstance(entry, GroupLine) else [entry]

    def hidden(self, runs: Sequence[RunLine]) -> int:
        return sum(not self._matches(run) for run in runs)

    # Asking and answers

    def look(self) -> None:
        self.ask("runs", self.molt.source.runs)

    def answered(self, topic: str, value: Any) -> None:
        if topic == "trends":
            self._keep_trends(value)
            self._redraw()
        elif topic == "notes":
            self.ask_note(*value)
        else:
            self._take(value)

    def _keep_trends(self, found: Mapping[str, Trend]) -> None:
        """Those of the rows in view, and the newest others."""
        for run_id, trend in found.items():
            if run_id in self.lines:
                self.trends.pop(run_id, None)
                self.trends[run_id] = (self.lines[run_id], trend)
        seen = {run.id for key in self.query_one(KeyTable).visible_keys for run in self._runs_of(key)}
        for run_id in [run_id for run_id in self.trends if run_id not in seen][:-TRENDS_KEPT]:
            del self.trends[run_id]

    def _take(self, runs: Sequence[RunLine]) -> None:
        """Without news only ages are drawn again; a run that did not change is the very object that was here before."""
        before, self.lines = self.lines, {run.id: run for run in runs}
        news = len(before) != len(runs) or any(before.get(run.id) is not run for run in runs)
        if news or not self.loaded or self.stale is not None or self.filter.by_time:
            self.marked &= self.lines.keys()
            self._matching = {run_id: known for run_id, known in self._matching.items() if run_id in self.lines}
            self.loaded, self.stale = True, None
            self.fill()
        else:
            self._redraw()

    def failed(self, topic: str, error: str) -> None:
        if topic == "notes":
            super().failed(topic, error)
            return
        self.stale = error
        self._show_top()

    def _ask_trends(self) -> None:
        """Curves of the rows in view whose run has news."""
        wanted = [run.id for key in self.query_one(KeyTable).visible_keys for run in self._runs_of(key)
                  if self.trends.get(run.id, (None,))[0] is not self.lines.get(run.id)]  # fmt: skip
        if wanted:
            self.ask("trends", lambda: self.molt.source.trends(wanted))

    def _runs_of(self, key: str) -> Sequence[RunLine]:
        found = self._shown.get(key)
        if found is None:
            return ()
        return found[0].runs if isinstance(found[0], GroupLine) else (found[0],)

    # What is shown

    def fill(self) -> None:
        """Filter, fold, sort; the table keeps its cursor by key. Before the first answer there is nothing to fill it with."""
        if not self.loaded:
            return
        entries = arrange(fold(filter(self._matches, self.lines.values())), self.order, self.flipped)
        rows = unfolded(entries, self.opened, self.order, self.flipped)
        self._shown = {key: (entry, member) for key, entry, member in rows}
        table = self.query_one(KeyTable)
        table.set_empty(f"  no run matches {clean(self.filter.text)}; esc clears the filter" if self.lines else
                        "  no run yet" if self.molt.chosen.read_only else
                        "  no run yet: press n to launch one, or leave and try `molt-tui demo`")  # fmt: skip
        here = self.lines.get(table.cursor_key or "")
        stand_in = GROUP_KEY + here.group if here is not None and here.group else None
        self._take_look()
        table.set_keys([key for key, _, _ in rows], self._cells, stand_in)
        if self._anchor is not None:
            table.point_at(self._anchor)
        self._show_top()
        self._show_selected()
        self._ask_trends()

    def _matches(self, run: RunLine) -> bool:
        """Whether the filter lets a run through; asked again only for runs with news, unless time itself matters."""
        known = self._matching.get(run.id)
        if known is not None and known[0] is run and not self.filter.by_time:
            return known[1]
        answer = self.filter.matches(run, time.time())
        self._matching[run.id] = (run, answer)
        return answer

    def _take_look(self) -> None:
        trends = {run_id: trend for run_id, (_, trend) in self.trends.items()}
        self._look = Look(self.wide, time.time(), frozenset(self.marked), frozenset(self.opened), trends, self.molt.ascii)

    def _cells(self, key: str) -> tuple[Cell, ...]:
        entry, member = self._shown[key]
        return run_table.cells(entry, member, self._look)

    def _redraw(self) -> None:
        self._take_look()
        self.query_one(KeyTable).redraw()
        self._show_selected()

    def _columns(self) -> list[Column]:
        """Column headers; an arrow stands at the one that sorts."""
        largest_first = ORDERS[self.order].largest_first != self.flipped
        arrow = glyphs.FALLING if largest_first else glyphs.RISING
        label = run_table.LABELS.get(self.order)
        columns: Sequence[Column] = run_table.WIDE if self.wide else run_table.NARROW
        return [replace(c, label=f"{c.label}{arrow}") if c.label == label else c for c in columns]

    def _set_columns(self) -> None:
        self.query_one(KeyTable).set_columns(self._columns())

    def _show_top(self) -> None:
        update(self.query_one("#top", Static), self._top())

    def _top(self) -> Content:
        """The line above the table; it counts nothing before the runs are known."""
        shown = sum(not member and isinstance(entry, RunLine) for entry, member in self._shown.values())
        shown += sum(len(entry.runs) for entry, _ in self._shown.values() if isinstance(entry, GroupLine))
        total = len(self.lines)
        words = run_about.counts(Counter(run.state for run in self.lines.values()), sum(r.alarming for r in self.lines.values()))
        parts: list[str | tuple[str, str]] = [(" molt-tui ", "bold reverse")]
        if self.molt.chosen.read_only:
            parts.append(("  read-only", "bold $text-warning"))
        if self.marked:
            parts.append((f"  {glyphs.MARKED} {len(self.marked)} marked", "bold $text-accent"))
        if self.stale:
            parts.append((f"  not refreshed: {clean(self.stale)}", "bold $text-error"))
        elif self.filter.terms:
            parts += [f"  {shown} of {total} runs match ", (clean(self.filter.text), "bold $text-accent")]
        elif self.loaded:
            parts.append(f"  {total} runs" if total != 1 else "  1 run")
            parts += words
        if self.order != "newest" or self.flipped:
            parts.append((f"   by {self.order}{', reversed' if self.flipped else ''}", "$quiet"))
        return Content.assemble(*parts)

    def _show_selected(self) -> None:
        lines = run_about.about(self.entry, self._look.now)
        update(self.query_one("#selected", Static), Content("\n").join(lines))
        self.offer()

    # Keys

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_selected()

    @on(KeyTable.Scrolled)
    def _scrolled(self) -> None:
        self._ask_trends()

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        if event.key.startswith(GROUP_KEY):
            self.action_fold()
        else:
            self.molt.open_run(event.key)

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        """Follow the typing; while the last term is wrong or unfinished, those before it hold."""
        try:
            self.filter, self.wrong = filters.parse(event.value), None
        except FilterError as error:
            self.wrong = str(error)
            with contextlib.suppress(FilterError):
                self.filter = filters.parse(event.value.rpartition(" ")[0])
        shown = self.query_one("#filter-error", Static)
        shown.display = self.wrong is not None
        update(shown, Content.styled(f"{glyphs.MARK['bad']} {clean(self.wrong or '')}", "$text-error"))
        self._matching.clear()
        self.fill()

    @on(Input.Submitted, "#filter")
    def _kept(self) -> None:
        if self.wrong is None:
            self._leave_filter()

    def _leave_filter(self) -> None:
        self._anchor = None
        self.query_one("#filter").display = False
        self.query_one("#filter-error").display = False
        self.query_one(KeyTable).focus()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        if not box.display:
            box.value = self.filter.text
        box.display = True
        box.cursor_position = len(box.value)
        self._anchor = self._anchor or self.query_one(KeyTable).cursor_key
        box.focus()

    def action_clear(self) -> None:
        """One level: the filter, then the marks."""
        box = self.query_one("#filter", Input)
        if box.display or self.filter.terms:
            box.value = ""
            self._leave_filter()
        elif self.marked:
            self.marked.clear()
            self._redraw()
            self._show_top()

    def action_sort(self) -> None:
        names = list(ORDERS)
        self.order, self.flipped = names[(names.index(self.order) + 1) % len(names)], False
        self._set_columns()
        self.fill()

    def action_flip(self) -> None:
        self.flipped = not self.flipped
        self._set_columns()
        self.fill()

    def action_mark(self) -> None:
        """Mark the run or the whole group and step down; what is marked already loses its mark."""
        ids = {run.id for run in self._runs_of(self.query_one(KeyTable).cursor_key or "")}
        self.marked = self.marked - ids if ids <= self.marked else self.marked | ids
        self._redraw()
        self._show_top()
        self.query_one(KeyTable).action_move(1)

    def action_fold(self) -> None:
        """Fold or unfold the group under the cursor; on a run of it, fold it and stay on it."""
        entry = self.entry
        name = entry.name if isinstance(entry, GroupLine) else entry.group if entry is not None else None
        if name is not None and GROUP_KEY + name in self._shown:
            self.opened ^= {name}
            self.fill()

    def action_fold_all(self) -> None:
        groups = {entry.name for entry, _ in self._shown.values() if isinstance(entry, GroupLine)}
        self.opened = set() if self.opened & groups else groups
        self.fill()

    def action_next_trouble(self) -> None:
        """To the next run at work that needs a look, else to the next that failed or was lost; a group opens for it."""
        found = run_about.next_trouble(list(self._shown.values()), self.query_one(KeyTable).cursor)
        if found is None:
            self.notify("no run here needs a look", markup=False)
            return
        if found.group is not None and found.id not in self._shown:
            self.opened.add(found.group)
            self.fill()
        self.query_one(KeyTable).point_at(found.id)

    def action_compare(self) -> None:
        """Overlay the marked runs; without marks the group or run under the cursor, to which others can be added."""
        entry = self.entry
        if self.marked:
            refs = run_about.compared(self.targets(), self._shown.values())
        else:
            refs = [] if entry is None else [f"group:{entry.name}" if isinstance(entry, GroupLine) else entry.id]
        from molt_tui.comparison import MAX_SUBJECTS

        if len(refs) > MAX_SUBJECTS:
            self.notify(f"at most {MAX_SUBJECTS} runs or groups can be compared; {len(refs)} are marked", severity="warning",
                        markup=False)  # fmt: skip
        else:
            self.molt.open_compare(refs)

    async def action_log(self) -> None:
        """Open the run with its log in front."""
        run = self.selected
        if run is not None:
            await self.molt.open_run(run.id)
            await self.app.run_action("screen.open('log')")

    def action_launch(self) -> None:
        self.molt.open_launch()


def update(widget: Static, content: Content) -> None:
    """Change a Static only when its text or styles differ, so that nothing is redrawn for nothing."""
    if getattr(widget, "_shown", None) != (content.plain, content.spans):
        widget._shown = (content.plain, list(content.spans))  # type: ignore[attr-defined]
        widget.update(content)
