"""The list of saved queries: the user's own and those that ship with molt-tui."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tui.screens.dialogs import Confirm, Dialog
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Cell, Column, KeyTable, Row

if TYPE_CHECKING:
    from molt_tui.tui.data_source import SavedQuery

COLUMNS = (Column("Name", 34), Column("From", 8), Column("SQL"))


class SavedQueries(Dialog["SavedQuery | None"]):
    """Enter gives the query. `delete` is called with the name of an own one, after a yes; `save` to keep the present SQL."""

    HELP = (
        "Saved queries. Your own ones are in queries.sql of molt-tui's home, a plain file."
        " Enter runs one, s saves the SQL in the editor, d deletes an own one."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "save", "Save the present one", id="saved.save"),
        Binding("d", "delete", "Delete", id="saved.delete"),
        Binding("escape", "dismiss(None)", "Back", id="saved.back"),
    ]

    def __init__(self, queries: Sequence[SavedQuery], delete: Callable[[str], None], save: Callable[[], None]) -> None:
        super().__init__()
        self.queries = {query.name: query for query in queries}
        self.delete, self.save = delete, save

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="wide"):
            yield Static("Saved queries", id="question", markup=False)
            yield KeyTable(COLUMNS, empty="  none")
            yield KeyFooter()

    def on_mount(self) -> None:
        self._fill()
        self.query_one(KeyTable).focus()

    def _fill(self) -> None:
        self.query_one(KeyTable).set_rows([Row(q.name, self._cells(q)) for q in self.queries.values()])

    @staticmethod
    def _cells(query: SavedQuery) -> tuple[Cell, ...]:
        words = clean(" ".join(query.sql.split()))
        return (clean(query.name), ""), ("you" if query.own else "molt-tui", "$quiet"), (words, "$quiet")

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        event.stop()
        self.dismiss(self.queries.get(event.key))

    def action_save(self) -> None:
        self.dismiss(None)
        self.save()

    def action_delete(self) -> None:
        query = self.queries.get(self.query_one(KeyTable).cursor_key or "")
        if query is None:
            return
        if not query.own:
            self.notify("this one ships with molt-tui; save another one under its name to replace it", markup=False)
            return

        def decided(yes: bool | None) -> None:
            if yes:
                self.delete(query.name)
                del self.queries[query.name]
                self._fill()

        self.app.push_screen(Confirm(f"Delete the query {clean(query.name)}?", clean(query.sql)[:300], "Delete it"), decided)
