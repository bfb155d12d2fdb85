"""Up to eight runs or groups side by side: one metric overlaid, settings that differ, final metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import ContentSwitcher, Static

from molt_tui.bands import BandPoint, Spread
from molt_tui.comparison import AXES, DEFAULT_METRIC, MAX_SUBJECTS, Comparison, short
from molt_tui.text import clean
from molt_tui.tui import clipboard, format
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.prompts import Ask, Pick
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.chart import smoothed_at
from molt_tui.tui.widgets.curve_keys import HINT, CurveKeys, column_size
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row
from molt_tui.tui.widgets.overlay import COLOURS, LETTERS, Overlay, axis_value

PAGES = {"curves": "Curves", "settings": "Settings that differ", "final": "Final metrics"}
LEGEND = (Column("", 1), Column("Run or group"), Column("Newest", 20, True), Column("At", 9, True), Column("", 24))


class CompareScreen(CurveKeys, MoltScreen):
    TITLE = "Compare"
    HELP = (
        "Runs and groups side by side; a letter names each in the plot and in the tables. A group is drawn as the mean of its"
        " runs, with dots one standard deviation above and below it.\n\n"
        "m chooses the metric by typing, b the axis: training step, tokens through the trainer, or time spent in steps."
        " tab turns the page: curves, settings that differ, final metrics (bold: ahead).\n\n"
        "left and right move a cursor: the table below the plot then has the values there, n has the newest again."
        " s smooths, L makes the values logarithmic.\n\n"
        "a adds a run or group, d takes the highlighted one out. e writes a file (.csv .json .md), y copies Markdown."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric", "Metric", id="compare.metric"),
        Binding("b", "axis", "Axis", id="compare.axis"),
        Binding("tab,right_square_bracket", "page(1)", "Page", id="compare.next"),
        Binding("shift+tab,left_square_bracket", "page(-1)", "Page before", show=False, id="compare.previous"),
        *CurveKeys.CURVE_KEYS,
        Binding("n", "newest", "Newest values", show=False, id="compare.newest"),
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
            yield KeyTable((Column("Setting"),), id="settings", empty="  all settings agree", opens=False)
            yield KeyTable((Column("Metric"),), id="final", empty="  nothing is reported yet", opens=False)
        yield KeyTable(LEGEND, id="compared", empty="  a adds a run or a group", opens=False)
        yield Static("", id="axis", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#compared").focus()
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the curves act where the curves are."""
        return self.page == "curves" if action in ("smooth", "log", "move", "newest") else True

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
        self.query_one("#compared").styles.height = len(subjects) + 1 if subjects else 3
        self._show_curves()
        if found is None:
            return
        for name, head, table in (("settings", "Setting", found.settings), ("final", "Metric", found.final)):
            widget = self.query_one(f"#{name}", KeyTable)
            widget.set_columns([Column(head), *(Column(self._head(i), self._cell_width()) for i in range(len(subjects)))])
            widget.set_rows([Row(key, self._values(key, values)) for key, values in table.items()] if self.refs else [])

    def _show_curves(self) -> None:
        """The plot and, below it, each subject's value: the newest one, or that under the cursor."""
        found = self.found if self.refs else None
        legend = self.query_one("#compared", KeyTable)
        word = "Newest" if self.mark is None else "Under cursor"
        legend.set_columns([replace(column, label=word) if column.label == "Newest" else column for column in LEGEND])
        legend.set_rows([Row(s.ref, self._legend(i)) for i, s in enumerate(found.subjects if found is not None else ())])
        if self.found is not None:
            self.query_one(Overlay).show(found.curves if found is not None else (), self.found.by, self.chart_look)

    @property
    def mark(self) -> float | None:
        """Where the cursor is; there is none beside the pages without curves."""
        return self.chart_look.mark if self.page == "curves" else None

    def redraw(self) -> None:
        """Draw the curves again in another way."""
        self._show_head()
        self._show_curves()

    def _cell_width(self) -> int:
        """Width of a subject's column: together they leave a third of the screen to the names."""
        return max(7, (2 * self.app.size.width // 3) // max(1, len(self.refs)) - 1)

    def _head(self, index: int) -> str:
        assert self.found is not None
        subject = self.found.subjects[index]
        return f"{LETTERS[index]} {clean(subject.label)}" + (f" ×{len(subject.run_ids)}" if subject.is_group else "")

    def _legend(self, index: int) -> tuple[Cell, ...]:
        """Letter, name, the newest drawn value (or the last one up to the cursor) and where it stands."""
        assert self.found is not None
        curve, mark = self.found.curves[index], self.mark
        letter = (LETTERS[index], f"bold {COLOURS[index]}")
        name = (self._head(index)[2:], "")
        shown = [p for p in curve if (p.n if mark is None else p.x <= mark)]
        if not shown:
            return letter, name, ("-", "$quiet"), ("", ""), (format.ABSENT if mark is None else "", "$quiet")
        words = []
        if self.chart_look.smooth > 1:
            mean = smoothed_at([(p.x, p.mean) for p in curve], self.chart_look, inf if mark is None else mark)
            words.append(f"mean {format.number(mean)}")
        lost = sum(p.n == 0 or p.mean != p.mean for p in curve)
        words += [f"{lost} not finite"] if lost else []
        more = (", ".join(words), "$text-error" if lost else "$quiet")
        return letter, name, (_value(shown[-1]), ""), (axis_value(shown[-1].x, self.found.by), "$quiet"), more

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
            drawn = f"   y: {self.chart_look.words}" if self.chart_look.words else ""
            said = Content.styled(f"x: {AXES[self.by]}{drawn}", "$quiet")
            if said.cell_length + len(HINT) + 5 <= self.app.size.width:
                said = Content.assemble(said, (f"   {HINT}", "$quiet"))
        update(self.query_one("#axis", Static), said)

    # Keys

    def action_page(self, by: int) -> None:
        names = list(PAGES)
        self.page = names[(names.index(self.page) + by) % len(names)]
        self.query_one(ContentSwitcher).current = self.page
        self.query_one("#compared" if self.page == "curves" else f"#{self.page}").focus()
        self.refresh_bindings()
        self.redraw()

    def action_axis(self) -> None:
        names = list(AXES)
        self.by = names[(names.index(self.by) + 1) % len(names)]
        self.chart_look = replace(self.chart_look, mark=None)
        self._show_head()
        self.look()

    def action_move(self, by: int) -> None:
        """Move the cursor by a column of the plot; from the newest values, and back to them at the right end."""
        places = [p.x for curve in self.found.curves for p in curve] if self.found is not None and self.refs else []
        size = column_size(places, self.query_one(Overlay).size.width)
        if size == 0:
            return
        if self.found is not None and self.found.by == "step":
            size = max(1, round(size))
        low, high = min(places), max(places)
        place = (high if self.chart_look.mark is None else self.chart_look.mark) + by * size
        self.chart_look = replace(self.chart_look, mark=None if place >= high else max(low, place))
        self.redraw()

    def action_newest(self) -> None:
        self.chart_look = replace(self.chart_look, mark=None)
        self.redraw()

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
        """One level: from the cursor to the newest values, then to the screen before."""
        if self.chart_look.mark is not None and self.page == "curves":
            self.action_newest()
        else:
            self.molt.go_back()


def _value(point: BandPoint) -> str:
    spread = "" if point.sd is None else f" ± {format.number(point.sd, 2)}"
    return f"{format.number(point.mean)}{spread}"


def _cell(value: Any) -> str:
    """A final value with fewer digits than an export has."""
    if isinstance(value, Spread):
        return "NaN" if value.n == 0 else _value(BandPoint(0.0, value.mean, value.sd, value.n))
    return format.number(value, 4) if isinstance(value, float) else short(value)
