"""Small screens over the others: a question with a safe default, and the card for a terminal that is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

MIN_WIDTH, MIN_HEIGHT = 80, 24


Result = TypeVar("Result")


class ClosesItself:
    """Mixin. Textual's `dismiss` closes whatever lies on top, and raises for a dialog that was closed before; keys that were on
    their way to a dialog when something came up above it would do both."""

    if TYPE_CHECKING:
        is_active: bool

    def dismiss(self, result: Any = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()


class Dialog(ClosesItself, ModalScreen[Result]):
    """A screen over another one; its style is read with the first of them."""

    CSS_PATH = "../screens.tcss"


class Confirm(Dialog[bool]):
    """Asks before something that cannot be undone. No has the focus; escape is No."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape", "answer(False)", "No", id="confirm.no"),
        Binding("left,right,tab,shift+tab", "app.focus_next", "Other", show=False, id="confirm.other"),
    ]

    def __init__(self, question: str, detail: str, yes: str) -> None:
        super().__init__()
        self.question, self.detail, self.yes = question, detail, yes

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self.question, id="question", markup=False)
            yield Static(self.detail, id="detail", markup=False)
            with Horizontal(id="buttons"):
                yield Button("No (n)", id="no")
                yield Button(f"{self.yes} (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class TooSmall(Dialog[None]):
    """Covers everything, so that no key reaches what cannot be seen; only quitting works."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "app.quit", "Quit", id="too_small.quit")]

    def compose(self) -> ComposeResult:
        yield Static("", id="card", markup=False)

    def on_resize(self) -> None:
        width, height = self.app.size
        self.query_one("#card", Static).update(f"need {MIN_WIDTH}x{MIN_HEIGHT}, have {width}x{height}\nq quits")
