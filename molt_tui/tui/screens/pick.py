"""Choosing one metric of all that a run reports, by typing a part of its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from molt_tui.text import shorten
from molt_tui.tui import catalog
from molt_tui.tui.screens.dialogs import Dialog

NAME = 34


class MetricPicker(Dialog[str]):
    """Dismissed with the name, or None after escape. The list follows what is typed; every word must be part of a name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="pick.close"),
        Binding("down", "move(1)", "Down", show=False, id="pick.down"),
        Binding("up", "move(-1)", "Up", show=False, id="pick.up"),
        Binding("pagedown", "move(10)", "Page down", show=False, id="pick.page_down"),
        Binding("pageup", "move(-10)", "Page up", show=False, id="pick.page_up"),
    ]

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = sorted(names)
        self.found: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Input(placeholder="part of a metric's name", id="part", compact=True)
            yield OptionList(id="found", markup=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#found", OptionList).can_focus = False
        self.query_one("#part", Input).focus()
        self._fill("")

    def _fill(self, typed: str) -> None:
        words = typed.lower().split()
        self.found = [name for name in self.names if all(word in name.lower() for word in words)]
        room = max(10, self.app.size.width - NAME - 12)
        options = self.query_one("#found", OptionList)
        options.clear_options()
        options.add_options(
            Option(Content.assemble(shorten(name, NAME).ljust(NAME), (f" {shorten(catalog.meaning(name), room)}", "$quiet")))
            for name in self.found
        )
        options.highlighted = 0 if self.found else None

    @on(Input.Changed, "#part")
    def _typed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    @on(Input.Submitted, "#part")
    def _chosen(self) -> None:
        place = self.query_one("#found", OptionList).highlighted
        self.dismiss(self.found[place] if place is not None else None)

    def action_move(self, by: int) -> None:
        options = self.query_one("#found", OptionList)
        if self.found:
            options.highlighted = min(max(0, (options.highlighted or 0) + by), len(self.found) - 1)
