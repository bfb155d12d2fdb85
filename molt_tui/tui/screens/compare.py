"""Up to eight runs or groups side by side: one metric overlaid, settings that differ, final metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import ContentSwitcher, Footer, Static

from molt_tui.bands import BandPoint, Spread
from molt_tui.comparison import AXES, DEFAULT_METRIC, MAX_SUBJECTS, Comparison, short
from molt_tui.text import clean
from molt_tui.tui import clipboard, format
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.prompts import Ask, Pick
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row
from molt_tui.tui.widgets.overlay import COLOURS, LETTERS, Overlay, axis_value

PAGES = {"curves": "Curves", "settings": "Settings that differ", "final": "Final metrics"}
LEGEND = (Column("", 1), Column("Run or group"), Column("Now", 20, True), Column("At", 9, True), Column("", 24))


class CompareScreen(MoltScreen):
    TITLE = "Compare"
    HELP = (
        "Runs and groups side by side; a letter names each in the plot and in the tables. A group is drawn as the mean of its"
        " runs, with dots one standard deviation above and below it.\n\n"
        "m chooses the metric by typing, b the axis: training step, tokens through the trainer, or time spent in steps."
        " tab turns the page: curves, settings that differ, final metrics (bold: ahead).\n\n"
        "a adds a run or group, d takes the one under the cursor out. e writes a file (.csv .json .md), y copies Markdown."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric", "Metric", id="compare.metric"),
        Binding("b", "axis", "Axis", id="compare.axis"),
        Binding("tab,right_square_bracket", "page(1)", "Page", id="compare.next"),
        Binding("shift+tab,left_square_bracket", "page(-1)", "Page before", show=False, id="compare.previous"),
        Binding("a", "add", "Add", id="compare.add"),
        Binding("d", "remove", "Take out", id="compare.remove"),
        Binding("e", "export", "Export", id="compare.export"),
        Binding("y", "copy", "Copy", show=False, id="compare.copy"),
        Binding("escape,backspace", "back", "Back", id="compare.back"),
    ]

    def __init__(self, refs: Sequence[str]) -> None:
        super().__init__()
        self.refs = list(refs)
        self.metric, self.by = DEFAULT_METRIC, "step"
        self.page = "curves"
        self.found: Comparison | None = None
        self.error: str | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        with ContentSwitcher(initial="curves", id="sides"):
            yield Overlay(id="curves")
            yield KeyTable((Column("Setting"),), id="settings", empty="  all settings agree")
            yield KeyTable((Column("Metric"),), id="final", empty="  nothing is reported yet")
        yield KeyTable(LEGEND, id="compared", empty="  a adds a run or a group")
        yield Static("", id="axis", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#compared").focus()
        self._show()

    def on_resize(self) -> None:
        self._show()

    # Asking and answers

    def look(self) -> None:
        if self.refs:
            refs, metric, by = tuple(self.refs), self.metric, self.by
            self.ask("compare", lambda: self.molt.source.compare(refs, metric, by))

    def answered(self, topic: str, value: Any) -> None:
        if topic == "copy":
            clipboard.copy(self.molt, value, "settings and final metrics as Markdown")
        elif topic == "compare":
            changed, self.error = value is not self.found or self.error is not None, None
            self.found = value
            if changed:
                self._show()

    def failed(self, topic: str, error: str) -> None:
        if topic in ("compare", "ingest"):
            self.error = error
            self._show_head()
        else:
            super().failed(topic, error)

    # What is shown

    def _show(self) -> None:
        self._show_head()
        found = self.found
        subjects = found.subjects if found is not None and self.refs else ()
        legend = self.query_one("#compared", KeyTable)
        legend.styles.height = len(subjects) + 1 if subjects else 3
        legend.set_rows([Row(s.ref, self._legend(i)) for i, s in enumerate(subjects)])
        if found is None:
            return
        self.query_one(Overlay).show(found.curves if self.refs else (), found.by)
        for name, head, table in (("settings", "Setting", found.settings), ("final", "Metric", found.final)):
            widget = self.query_one(f"#{name}", KeyTable)
            widget.set_columns([Column(head), *(Column(self._head(i), self._cell_width()) for i in range(len(subjects)))])
            widget.set_rows([Row(key, self._values(key, values)) for key, values in table.items()] if self.refs else [])

    def _cell_width(self) -> int:
        """Width of a subject's column: together they leave a third of the screen to the names."""
        return max(7, (2 * self.app.size.width // 3) // max(1, len(self.refs)) - 1)

    def _head(self, index: int) -> str:
        assert self.found is not None
        subject = self.found.subjects[index]
        return f"{LETTERS[index]} {clean(subject.label)}" + (f" ×{len(subject.run_ids)}" if subject.is_group else "")

    def _legend(self, index: int) -> tuple[Cell, ...]:
        """Letter, name, the newest drawn value and where it stands."""
        assert self.found is not None
        curve = self.found.curves[index]
        letter = (LETTERS[index], f"bold {COLOURS[index]}")
        name = (self._head(index)[2:], "")
        last = next((p for p in reversed(curve) if p.n), None)
        if last is None:
            return letter, name, ("-", "$quiet"), ("", ""), (format.ABSENT, "$quiet")
        lost = sum(p.n == 0 or p.mean != p.mean for p in curve)
        missing = (f"{lost} not finite" if lost else "", "$text-error")
        return letter, name, (_value(last), ""), (axis_value(last.x, self.found.by), "$quiet"), missing

    def _values(self, key: str, values: Sequence[Any]) -> tuple[Cell, ...]:
        assert self.found is not None
        best = self.found.best.get(key)
        return (clean(key), ""), *((_cell(value), "bold $text-success" if i == best else "") for i, value in enumerate(values))

    def _show_head(self) -> None:
        page = "  ".join(f"[{words}]" if name == self.page else words for name, words in PAGES.items())
        title: list[str | tuple[str, str]] = [(" Compare ", "bold reverse"), "  "]
        if self.page == "curves":
            title += [(clean(self.metric), "bold $text-accent"), f" by {self.by}"]
        update(self.query_one("#top", Static), Content.assemble(*title, (f"   {page}", "$quiet")))
        said = Content("")
        if self.error is not None:
            said = Content.styled(f"not refreshed: {clean(self.error)}", "bold $text-error")
        elif self.found is not None and self.found.problems and self.page == "curves":
            said = Content.styled("; ".join(map(clean, self.found.problems)), "$text-warning")
        elif self.page == "curves" and self.refs:
            said = Content.styled(f"x: {AXES[self.by]}", "$quiet")
        update(self.query_one("#axis", Static), said)

    # Keys

    def action_page(self, by: int) -> None:
        names = list(PAGES)
        self.page = names[(names.index(self.page) + by) % len(names)]
        self.query_one(ContentSwitcher).current = self.page
        self.query_one("#compared" if self.page == "curves" else f"#{self.page}").focus()
        self._show_head()

    def action_axis(self) -> None:
        names = list(AXES)
        self.by = names[(names.index(self.by) + 1) % len(names)]
        self._show_head()
        self.look()

    def action_metric(self) -> None:
        """Choose by typing among everything that one of them has reported as a number."""
        final = self.found.final if self.found is not None else {}
        keys = [key for key, values in final.items() if any(isinstance(v, (float, Spread)) for v in values)]

        def decided(key: str | None) -> None:
            if key is not None:
                self.metric = key
                self._show_head()
                self.look()

        choices = [(key, clean(key)) for key in keys]
        self.molt.push_screen(Pick("Which metric?", choices, self.metric, "no metric has these letters"), decided)

    def action_add(self) -> None:
        if len(self.refs) >= MAX_SUBJECTS:
            self.notify(f"{MAX_SUBJECTS} are compared already: take one out with d", severity="warning", markup=False)
            return
        lines = self.molt.known_runs()
        groups: dict[str, int] = {}
        for line in lines:
            if line.group is not None:
                groups[line.group] = groups.get(line.group, 0) + 1
        choices = [(f"group:{name}", f"{name}  group of {count}") for name, count in groups.items() if count > 1]
        choices += [(line.id, f"{line.name}  {line.state}  {line.id}") for line in lines]

        def decided(ref: str | None) -> None:
            if ref is not None and ref not in self.refs:
                self.refs.append(ref)
                self.look()

        self.molt.push_screen(Pick("Compare with which run or group?", [c for c in choices if c[0] not in self.refs]), decided)

    def action_remove(self) -> None:
        ref = self.query_one("#compared", KeyTable).cursor_key
        if ref in self.refs:
            self.refs.remove(ref)
            self._show() if not self.refs else self.look()

    def action_export(self) -> None:
        if self.found is None or not self.refs:
            self.notify("nothing to export yet", markup=False)
            return
        query = tuple(self.refs), self.metric, self.by

        def decided(path: str | None) -> None:
            if path and path.strip():
                self.molt.background.act(self.molt, "export", lambda: self.molt.source.export_comparison(*query, path.strip()))

        about = "Settings that differ, final metrics and, in .csv and .json, the curves shown."
        self.molt.push_screen(Ask("Export to which file?", about, "compare.csv", "ends in .csv, .json or .md"), decided)

    def action_copy(self) -> None:
        if self.found is not None and self.refs:
            query = tuple(self.refs), self.metric, self.by
            self.ask("copy", lambda: self.molt.source.comparison_text(*query))

    def action_back(self) -> None:
        self.molt.go_back()


def _value(point: BandPoint) -> str:
    spread = "" if point.sd is None else f" ± {format.number(point.sd, 2)}"
    return f"{format.number(point.mean)}{spread}"


def _cell(value: Any) -> str:
    """A final value with fewer digits than an export has."""
    if isinstance(value, Spread):
        return "NaN" if value.n == 0 else _value(BandPoint(0.0, value.mean, value.sd, value.n))
    return format.number(value, 4) if isinstance(value, float) else short(value)
