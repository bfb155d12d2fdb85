"""SQL over everything that is known of the runs: an editor, its completions, and the result as a table."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tui import clipboard
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.prompts import Ask
from molt_tui.tui.screens.runs import update
from molt_tui.tui.screens.saved_queries import SavedQueries
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row
from molt_tui.tui.widgets.sql_editor import SqlEditor

if TYPE_CHECKING:
    from molt_tui.tui.data_source import QueryResult, SavedQuery, Vocabulary

FIRST = 'SELECT id, state, step, reward, "group"\nFROM run_summary ORDER BY created DESC LIMIT 50'
MAX_WIDTH, SAMPLED_ROWS = 40, 300
STYLES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "markdown"}
CUT = {"rows": "more rows were left out", "bytes": "more rows would not fit into memory", "": ""}


def cell(value: Any) -> Cell:
    """A value of a result as clean text."""
    if value is None:
        return "NULL", "$quiet"
    if isinstance(value, bytes):
        return f"x'{value[:64].hex()}'", "$quiet"
    if isinstance(value, float):
        return f"{value:.6g}", ""
    return clean(value if len(text := str(value)) < 2000 else text[:2000]), ""


def columns_of(result: QueryResult, rows: Sequence[Row]) -> list[Column]:
    """As wide as the first rows need, numbers to the right."""
    found = []
    for i, name in enumerate(result.columns):
        label = clean(name)
        longest = max((cell_len(row.cells[i][0]) for row in rows[:SAMPLED_ROWS]), default=0)
        numbers = all(isinstance(row[i], (int, float, type(None))) for row in result.rows[:SAMPLED_ROWS])
        found.append(Column(label, min(MAX_WIDTH, max(cell_len(label), longest, 2)), numbers and bool(result.rows)))
    return found


class QueryScreen(MoltScreen):
    TITLE = "Query"
    HELP = (
        "One SELECT over the database. Views: run_summary, metrics (all attempts), metric_curve (one a step), latest_metric,"
        " events, rollouts; tables: runs, attempts, notes. Reading only, at most 30 s, 10,000 rows, 64 MiB.\n\n"
        "tab completes tables, columns, and inside quotes names of metrics and runs. In the result: enter opens the run (or the"
        " rollout) of a row, left and right bring more columns, e writes a file, y copies."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r,f5", "run", "Run", id="query.run"),
        Binding("ctrl+o", "open", "Saved", id="query.open"),
        Binding("f2", "save", "Save", id="query.save"),
        Binding("escape", "back", "Back", id="query.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.result: QueryResult | None = None
        self.rows: list[Row] = []
        self.vocabulary: Vocabulary | None = None
        self.first_column = 0
        self.cancelled = threading.Event()
        self.running_since: float | None = None
        self.number = 0
        self.message = Content.styled("ctrl+r runs it, ctrl+o shows saved queries", "$quiet")

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield SqlEditor(FIRST, id="sql")
        yield Static("", id="candidates", markup=False)
        yield ResultTable((), id="result", empty="")
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(SqlEditor).focus()
        editor = self.query_one(SqlEditor)
        editor.move_cursor(editor.document.end)
        self.set_interval(1.0, self._tick)
        self._show_top()

    def on_resize(self, event: events.Resize) -> None:
        self._show_columns()

    def look(self) -> None:
        """Names to complete are read when the screen comes up."""
        if self.vocabulary is None:
            self.load_vocabulary()

    def load_vocabulary(self) -> None:
        self.ask("vocabulary", self.molt.source.vocabulary)

    def on_screen_resume(self) -> None:
        self.load_vocabulary()

    def answered(self, topic: str, value: Any) -> None:
        if topic == "vocabulary":
            self.vocabulary = value
            self.query_one(SqlEditor).vocabulary = value
        elif topic == f"query {self.number}":
            self._show_result(*value)
        elif topic == "place":
            self._open(value)
        elif topic in ("save", "delete", "export"):
            self.notify(value, markup=False)
            self.load_vocabulary()

    def failed(self, topic: str, error: str) -> None:
        if topic.startswith("query "):
            if topic == f"query {self.number}":
                self.running_since = None
                self.message = Content.styled(error, "bold $text-error")
                self._show_top()
                if len(error) > self.app.size.width - 12:
                    super().failed(topic, error)
        else:
            super().failed(topic, error)

    def _tick(self) -> None:
        if self.running_since is not None:
            self._show_top()

    def _show_top(self) -> None:
        message = self.message
        if self.running_since is not None:
            message = Content.styled(f"running {time.monotonic() - self.running_since:.0f} s, esc cancels", "$text-warning")
        line = Content.assemble((" Query ", "bold reverse"), "  ", message)
        update(self.query_one("#top", Static), line.truncate(self.app.size.width, ellipsis=True))

    def _show_result(self, result: QueryResult, rows: list[Row]) -> None:
        self.result, self.running_since, self.first_column = result, None, 0
        cut = CUT[result.cut]
        count = f"{len(result.rows)} row{'' if len(result.rows) == 1 else 's'}, {result.seconds:.2g} s"
        self.message = Content.assemble((count, "bold"), (f"  {cut}" if cut else "", "bold $text-warning"))
        table = self.query_one(ResultTable)
        table.set_empty("  no rows")
        self.rows = rows
        self._show_columns()
        if rows and isinstance(self.focused, SqlEditor):
            table.focus()
        self._show_top()

    def _show_columns(self) -> None:
        """The columns from `first_column` on; the last one takes the rest."""
        if self.result is None:
            return
        table = self.query_one(ResultTable)
        columns = columns_of(self.result, self.rows)
        shown, used = [], 0
        for column in columns[self.first_column :]:
            if shown and used + column.width + 1 > self.app.size.width:
                break
            shown.append(column)
            used += column.width + 1
        more = self.first_column + len(shown) < len(columns)
        if shown and (more or shown[-1].width == MAX_WIDTH):
            last = shown[-1]
            shown[-1] = Column(last.label, 0, last.right)
        table.set_columns(shown)
        first, last_index = self.first_column, self.first_column + len(shown)
        table.set_rows([Row(row.key, row.cells[first:last_index]) for row in self.rows])

    def action_run(self) -> None:
        sql = self.query_one(SqlEditor).text
        self.cancelled.set()
        cancelled = self.cancelled = threading.Event()
        self.number += 1
        self.running_since = time.monotonic()
        self._show_top()
        source = self.molt.source

        def work() -> tuple[QueryResult, list[Row]]:
            result = source.query(sql, cancelled.is_set)
            return result, [Row(str(i), tuple(map(cell, row))) for i, row in enumerate(result.rows)]

        self.molt.background.act(self, f"query {self.number}", work)

    def action_back(self) -> None:
        """One level: stop the query, else from the editor to the result or from there to the screen before."""
        if self.running_since is not None:
            self.cancelled.set()
        else:
            self.molt.go_back()

    def action_open(self) -> None:
        known = self.vocabulary.saved if self.vocabulary is not None else ()
        self.app.push_screen(SavedQueries(known, self._delete, self.action_save), self._chosen)

    def _chosen(self, query: SavedQuery | None) -> None:
        if query is not None:
            self.query_one(SqlEditor).text = query.sql
            self.query_one(SqlEditor).focus()
            self.action_run()

    def _delete(self, name: str) -> None:
        source = self.molt.source

        def work() -> str:
            source.delete_query(name)
            return f"deleted {clean(name)}"

        self.molt.background.act(self, "delete", work)

    def action_save(self) -> None:
        sql, source = self.query_one(SqlEditor).text, self.molt.source

        def named(name: str | None) -> None:
            if name:
                self.molt.background.act(self, "save", lambda: source.save_query(name, sql) or f"saved as {clean(name)}")

        self.app.push_screen(Ask("Save this query", "A name; an own query of the same name is replaced."), named)

    @on(SqlEditor.Candidates)
    def _candidates(self, message: SqlEditor.Candidates) -> None:
        parts: list[tuple[str, str]] = []
        for i, word in enumerate(message.words[max(0, message.chosen - 3) :][:20], max(0, message.chosen - 3)):
            parts += [(f"{clean(word)}", "bold reverse" if i == message.chosen else "$quiet"), ("  ", "")]
        hint = Content.assemble(("tab ", "$text-accent"), *parts) if parts else Content("")
        update(self.query_one("#candidates", Static), hint.truncate(self.app.size.width - 2, ellipsis=True))

    def row_under_cursor(self) -> Mapping[str, Any] | None:
        index = self.query_one(ResultTable).cursor
        if self.result is None or not 0 <= index < len(self.result.rows):
            return None
        return dict(zip(self.result.columns, self.result.rows[index]))

    @on(KeyTable.Chosen)
    def _row_chosen(self) -> None:
        row, source = self.row_under_cursor(), self.molt.source
        if row is not None:
            self.ask("place", lambda: source.find_place(row))

    def _open(self, found: Any) -> None:
        if found is None:
            self.notify("this row names no run: add a column `run` (or `id`) to the query", markup=False)
        elif found[1] is not None:
            self.molt.open_tokens(found[0], found[1])
        else:
            self.molt.open_run(found[0])

    def shift(self, by: int) -> None:
        if self.result is not None:
            self.first_column = min(max(0, self.first_column + by), max(0, len(self.result.columns) - 1))
            self._show_columns()

    def copy_row(self) -> None:
        row = self.row_under_cursor()
        if row is not None:
            clipboard.copy(self.app, "\t".join("" if v is None else str(v) for v in row.values()), "row")

    def export(self) -> None:
        result, source = self.result, self.molt.source
        if result is None:
            return

        def named(path: str | None) -> None:
            style = STYLES.get(os.path.splitext(path or "")[1].lower())
            if path and style is None:
                self.notify(f"the name must end in one of {', '.join(STYLES)}", severity="error", markup=False)
            elif path and style:
                told = f"{len(result.rows)} rows in "
                self.molt.background.act(self, "export", lambda: told + clean(source.write_result(result, style, path)))

        name = time.strftime("query-%Y%m%d-%H%M%S.csv")
        detail = f"A file name; its end says the format: {', '.join(STYLES)}."
        self.app.push_screen(Ask(f"Write {len(result.rows)} rows to a file", detail, name), named)


class ResultTable(KeyTable):
    """The result of a query; the keys that act on it belong to it, so that they can be typed in the editor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "shift(-1)", "Columns before", show=False, id="result.left"),
        Binding("right,l", "shift(1)", "More columns", show=False, id="result.right"),
        Binding("e", "export", "Export", id="result.export"),
        Binding("y", "copy", "Copy", id="result.copy"),
        Binding("tab,shift+tab,i,slash", "edit", "Edit", id="result.edit"),
    ]

    @property
    def _query(self) -> QueryScreen:
        assert isinstance(self.screen, QueryScreen)
        return self.screen

    def action_shift(self, by: int) -> None:
        self._query.shift(by)

    def action_export(self) -> None:
        self._query.export()

    def action_copy(self) -> None:
        self._query.copy_row()

    def action_edit(self) -> None:
        self.screen.query_one(SqlEditor).focus()
