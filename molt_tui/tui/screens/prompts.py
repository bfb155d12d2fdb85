"""Small screens that ask for a text: a line to type, or a line with what it may be completed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from molt_tui.tui.screens.dialogs import Dialog
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row

LIST_ROWS = 400  # what a person still scrolls through; typing narrows the rest


class Ask(Dialog[str | None]):
    """One line of text; enter gives it, escape gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", id="ask.cancel")]

    def __init__(self, question: str, detail: str = "", value: str = "", hint: str = "") -> None:
        super().__init__()
        self.question, self.detail, self.value, self.hint = question, detail, value, hint

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self.question, id="question", markup=False)
            if self.detail:
                yield Static(self.detail, id="detail", markup=False)
            yield Input(self.value, placeholder=self.hint, id="answer", compact=True, select_on_focus=False)
            yield Static("enter keeps it, esc leaves everything as it is", id="ask-keys", markup=False)

    @on(Input.Submitted)
    def _given(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)


def narrowed(choices: Sequence[tuple[str, str]], text: str) -> list[tuple[str, str]]:
    """Choices (key, shown text) that hold every word typed; those that begin with it first."""
    wanted = text.lower().strip()
    found = [choice for choice in choices if all(word in choice[1].lower() for word in wanted.split())]
    return sorted(found, key=lambda choice: not choice[1].lower().startswith(wanted))[:LIST_ROWS]


class Pick(Dialog[str | None]):
    """A choice by typing: arrows move in what still fits, tab completes, enter takes the line under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", id="choose.cancel"),
        Binding("down", "move(1)", "Next", show=False, priority=True, id="choose.down"),
        Binding("up", "move(-1)", "Previous", show=False, priority=True, id="choose.up"),
        Binding("pagedown", "move(8)", "Page down", show=False, priority=True, id="choose.page_down"),
        Binding("pageup", "move(-8)", "Page up", show=False, priority=True, id="choose.page_up"),
        Binding("tab", "complete", "Complete", show=False, priority=True, id="choose.complete"),
    ]

    def __init__(self, question: str, choices: Sequence[tuple[str, str]], current: str = "", none: str = "nothing fits") -> None:
        super().__init__()
        self.question, self.choices, self.current, self.none = question, list(choices), current, none

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self.question, id="question", markup=False)
            yield Input(placeholder="type a part of it", id="answer", compact=True)
            table = KeyTable((Column("", 0),), id="choices", empty=f"  {self.none}")
            table.can_focus = False
            yield table

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(KeyTable).point_at(self.current)

    def _fill(self, text: str) -> None:
        found = narrowed(self.choices, text)
        self.query_one(KeyTable).set_rows([Row(key, ((shown, ""),)) for key, shown in found])

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._fill(event.value)
        self.query_one(KeyTable).action_edge(0)

    @on(Input.Submitted)
    def _given(self) -> None:
        chosen = self.query_one(KeyTable).cursor_key
        if chosen is not None:
            self.dismiss(chosen)

    @on(KeyTable.Chosen)
    def _clicked(self, event: KeyTable.Chosen) -> None:
        self.dismiss(event.key)

    def action_move(self, by: int) -> None:
        self.query_one(KeyTable).action_move(by)

    def action_complete(self) -> None:
        """The text under the cursor becomes the text typed."""
        shown = dict(self.choices).get(self.query_one(KeyTable).cursor_key or "")
        if shown is not None:
            box = self.query_one(Input)
            box.value = shown
            box.cursor_position = len(shown)

    def action_cancel(self) -> None:
        self.dismiss(None)
