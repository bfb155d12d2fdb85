"""A text area for SQL: tab completes the word before the cursor, and again takes the next candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

from molt_tui.text import clean
from molt_tui.tui.completion import complete
from molt_tui.tui.data_source import Vocabulary


@dataclass
class _Cycle:
    """A completion that goes on: where the word stands, and which of the candidates is in its place."""

    start: tuple[int, int]
    candidates: list[str]
    index: int


class SqlEditor(TextArea):
    """Posts `Candidates` when what can be completed has changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete(1)", "Complete", id="editor.complete"),
        Binding("shift+tab", "complete(-1)", "Candidate before", show=False, id="editor.complete_before"),
    ]

    @dataclass
    class Candidates(Message):
        words: list[str]
        chosen: int

    def __init__(self, text: str, *, id: str | None = None) -> None:
        super().__init__(text, id=id, soft_wrap=True, tab_behavior="focus", show_line_numbers=False, compact=True)
        self.vocabulary = Vocabulary()
        self._cycle: _Cycle | None = None
        self._own = False

    def load_text(self, text: str) -> None:
        super().load_text(clean(text, lines=True))

    def edit(self, edit: Edit) -> EditResult:
        """Whatever is typed or pasted; a terminal would interpret control characters, since the text is drawn as it is."""
        edit.text = clean(edit.text, lines=True)
        return super().edit(edit)

    def _before(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def _suggest(self) -> None:
        start, found = complete(self._before(), self.vocabulary)
        self._cycle = None
        self.post_message(self.Candidates(found if self._before()[start:] else [], -1))

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        if self._own:
            self._own = False
        else:
            self._suggest()

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        event.stop()

    async def _on_key(self, event: events.Key) -> None:
        if event.key not in ("tab", "shift+tab"):
            self._cycle = None
        await super()._on_key(event)

    def action_complete(self, by: int) -> None:
        """The next candidate in place of the word; without one, on to the next part of the screen."""
        if self._cycle is None:
            before = self._before()
            start, found = complete(before, self.vocabulary)
            if not found or not before[start:]:
                self.screen.focus_next() if by > 0 else self.screen.focus_previous()
                return
            row, column = self.cursor_location
            self._cycle = _Cycle((row, column - (len(before) - start)), found, -1 if by > 0 else 0)
        cycle = self._cycle
        cycle.index = (cycle.index + by) % len(cycle.candidates)
        self._own = True
        self.replace(cycle.candidates[cycle.index], cycle.start, self.cursor_location)
        self.move_cursor((cycle.start[0], cycle.start[1] + len(cycle.candidates[cycle.index])))
        self.post_message(self.Candidates(cycle.candidates, cycle.index))
