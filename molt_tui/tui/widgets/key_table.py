"""A table whose rows are known by key alone: the cursor stays on its row through every refresh, sort and filter.

Cells are asked for only of the lines that are visible, and after an update only those that changed are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual

Cell = tuple[str, str]


@dataclass(frozen=True)
class Column:
    """`width` 0 takes what the others leave; `right` aligns numbers; `both_ends` cuts a long text in its middle."""

    label: str
    width: int = 0
    right: bool = False
    both_ends: bool = False


@dataclass(frozen=True)
class Row:
    """`cells`: one (text, style) pair per column; the text must be clean already."""

    key: str
    cells: tuple[Cell, ...]


def fit(text: str, width: int, right: bool = False, both_ends: bool = False) -> str:
    """Text in exactly `width` cells; what does not fit has an ellipsis at its end, or before its last third."""
    size = cell_len(text)
    if size > width:
        if both_ends and width >= 9:
            tail = text[-(width // 3) :]
            return fit(text[: -len(tail)], width - cell_len(tail)) + tail
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return " " * (width - size) + text if right else text + " " * (width - size)


class KeyTable(ScrollView, can_focus=True):
    """Rows by key. Posts `Highlighted` when the cursor comes to another key and `Chosen` on enter."""

    ALLOW_MAXIMIZE = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-table--header", "key-table--cursor", "key-table--blurred"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("up,k", "move(-1)", "Up", show=False, id="table.up"),
        Binding("pagedown,ctrl+d", "page(1)", "Page down", show=False, id="table.page_down"),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False, id="table.page_up"),
        Binding("home,g", "edge(0)", "First", show=False, id="table.first"),
        Binding("end,G", "edge(-1)", "Last", show=False, id="table.last"),
        Binding("enter", "choose", "Open", id="table.choose"),
    ]

    @dataclass
    class Highlighted(Message):
        table: KeyTable
        key: str | None

        @property
        def control(self) -> KeyTable:
            return self.table

    @dataclass
    class Chosen(Message):
        table: KeyTable
        key: str

        @property
        def control(self) -> KeyTable:
            return self.table

    @dataclass
    class Scrolled(Message):
        """Other rows came into view."""

        table: KeyTable

        @property
        def control(self) -> KeyTable:
            return self.table

    def __init__(self, columns: Sequence[Column], *, empty: str = "", id: str | None = None, opens: bool = True) -> None:
        """`opens`: whether there is something behind a row."""
        super().__init__(id=id)
        self.opens = opens
        self.columns = tuple(columns)
        self.empty = empty
        self.keys: list[str] = []
        self.cursor_key: str | None = None
        self._index: dict[str, int] = {}
        self._cells: Callable[[str], Sequence[Cell]] = lambda key: ()
        self._drawn: dict[int, tuple[str, Sequence[Cell]]] = {}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.opens if action == "choose" else True

    @property
    def cursor(self) -> int:
        """Index of the cursor's row; -1 in an empty table."""
        return -1 if self.cursor_key is None else self._index.get(self.cursor_key, -1)

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the content by rows made beforehand; for tables that are short."""
        known = {row.key: row.cells for row in rows}
        self.set_keys(list(known), known.__getitem__)

    def set_keys(self, keys: Sequence[str], cells: Callable[[str], Sequence[Cell]], cursor: str | None = None) -> None:
        """Replace the content; `cells` is asked for the rows in view. A cursor whose row is gone moves to the key `cursor`,
        or to the row now in its place."""
        old_cursor, old_length = self.cursor, len(self.keys)
        self.keys, self._cells = list(keys), cells
        self._index = {key: i for i, key in enumerate(self.keys)}
        if self.cursor_key not in self._index:
            place = self._index.get(cursor or "", min(max(old_cursor, 0), len(self.keys) - 1))
            self._point_at(self.keys[place] if self.keys else None)
        if old_length != len(self.keys):
            self.virtual_size = Size(self.size.width, len(self.keys) + 1)
            if not old_length or not self.keys:
                self.refresh()
        if self.cursor != old_cursor:
            self._refresh_row(old_cursor)
            self._refresh_row(self.cursor)
            self._reveal()
        self.redraw()

    def redraw(self) -> None:
        """Draw again what differs from what is shown."""
        for y in range(1, self.size.height):
            index = y - 1 + self.scroll_offset.y
            key = self.keys[index] if index < len(self.keys) else None
            now = None if key is None else (key, tuple(self._cells(key)))
            if now != self._drawn.get(y):
                self.refresh(Region(0, y, self.size.width, 1))

    @property
    def rows(self) -> list[Row]:
        return [Row(key, tuple(self._cells(key))) for key in self.keys]

    @property
    def visible_keys(self) -> list[str]:
        top = self.scroll_offset.y
        return self.keys[top : top + max(0, self.size.height - 1)]

    def set_columns(self, columns: Sequence[Column]) -> None:
        if tuple(columns) != self.columns:
            self.columns = tuple(columns)
            self.refresh()

    def set_empty(self, text: str) -> None:
        if text != self.empty:
            self.empty = text
            self.refresh()

    def point_at(self, key: str) -> None:
        """Move the cursor to a key; an unknown key is ignored."""
        if key in self._index and key != self.cursor_key:
            before = self.cursor
            self._point_at(key)
            self._refresh_row(before)
            self._refresh_row(self.cursor)
            self._reveal()

    def _point_at(self, key: str | None) -> None:
        if key != self.cursor_key:
            self.cursor_key = key
            self.post_message(self.Highlighted(self, key))

    def _refresh_row(self, index: int) -> None:
        y = index + 1 - self.scroll_offset.y
        if index >= 0 and 1 <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def _reveal(self) -> None:
        """Scroll just far enough that the cursor's row is visible below the header."""
        index, page = self.cursor, max(1, self.size.height - 1)
        if index < 0:
            return
        top = self.scroll_offset.y
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif index >= top + page:
            self.scroll_to(y=index - page + 1, animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.post_message(self.Scrolled(self))

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.size.width, len(self.keys) + 1)
        self._reveal()

    def _goto(self, index: int) -> None:
        if self.keys:
            self.point_at(self.keys[min(max(index, 0), len(self.keys) - 1)])

    def action_move(self, by: int) -> None:
        self._goto(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._goto(self.cursor + by * max(1, self.size.height - 2))

    def action_edge(self, index: int) -> None:
        self._goto(index if index >= 0 else len(self.keys) + index)

    def action_choose(self) -> None:
        if self.cursor_key is not None:
            self.post_message(self.Chosen(self, self.cursor_key))

    def on_click(self, event: events.Click) -> None:
        index = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and 0 <= index < len(self.keys):
            self._goto(index)
            if event.chain == 2:
                self.action_choose()

    def widths(self, total: int) -> list[int]:
        """Width of each column; the one without a width takes the rest. One blank parts neighbours."""
        fixed = sum(c.width for c in self.columns) + len(self.columns) - 1
        return [c.width or max(4, total - fixed) for c in self.columns]

    def _line(self, cells: Sequence[Cell]) -> Content:
        parts: list[str | tuple[str, str]] = []
        for column, width, (text, style) in zip(self.columns, self.widths(self.scrollable_content_region.width), cells):
            parts += [(fit(text, width, column.right, column.both_ends), style), " "]
        return Content.assemble(*parts[:-1])

    def render_line(self, y: int) -> Strip:
        width, index = self.size.width, y - 1 + self.scroll_offset.y
        self._drawn.pop(y, None)
        if y == 0:
            content = self._line([(c.label, "") for c in self.columns])
            style = self.get_visual_style("key-table--header")
        elif index < len(self.keys):
            content, style = self._row(y, index)
        else:
            shown = self.empty if y == 2 and not self.keys else ""
            content, style = Content.styled(shown, "$quiet"), self.visual_style
        if not content.plain:
            return Strip.blank(width, style.rich_style)
        return Visual.to_strips(self, content, width, 1, style, pad=True)[0]

    def _row(self, y: int, index: int) -> tuple[Content, Style]:
        key = self.keys[index]
        cells = tuple(self._cells(key))
        self._drawn[y] = (key, cells)
        if index != self.cursor:
            return self._line(cells), self.visual_style
        if not self.has_focus:
            return self._line(cells), self.get_visual_style("key-table--blurred")
        return self._line([(text, "") for text, _ in cells]), self.get_visual_style("key-table--cursor")
