"""What every screen shares: asking for data, drawing the answer, saying when it is stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import ActiveBinding, Binding, BindingType
from textual.screen import Screen

from molt_tui.tui.background import Answer
from molt_tui.tui.patches import drop_drawn_lines
from molt_tui.tui.preferences import character_of

if TYPE_CHECKING:
    from molt_tui.tui.app import MoltApp


class MoltScreen(Screen[None]):
    """Subclasses implement `look` (ask for what is shown) and `answered` (draw it)."""

    HELP: ClassVar[str] = ""
    PART: ClassVar[bool] = False  # of the screen it was opened from: it goes when that one goes
    CSS_PATH = "../screens.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "look", "Refresh", show=False, id="screen.refresh")]

    @property
    def molt(self) -> MoltApp:
        return self.app  # type: ignore[return-value]

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """Without the keys that are typed into what has the focus."""
        found, focused = super().active_bindings, self.focused
        if focused is None or not focused.check_consume_key("a", "a"):
            return found
        return {key: active for key, active in found.items() if not focused.check_consume_key(key, character_of(key))}

    def look(self) -> None:
        """Ask for fresh data; called after every ingest pass while the screen is on top."""

    def answered(self, topic: str, value: Any) -> None:
        """Draw an answer."""

    def failed(self, topic: str, error: str) -> None:
        """The last data stays on the screen; the message says what happened."""
        self.notify(error, severity="error", markup=False)

    def ask(self, topic: str, work: Callable[[], Any]) -> None:
        self.molt.background.ask(self, topic, work)

    def on_answer(self, answer: Answer) -> None:
        if answer.error is not None:
            self.failed(answer.topic, answer.error)
        else:
            self.answered(answer.topic, answer.value)

    def on_screen_resume(self) -> None:
        self.look()

    def on_screen_suspend(self) -> None:
        if not self.app.screen.is_modal:  # a dialog leaves it in sight
            drop_drawn_lines(self)

    def action_look(self) -> None:
        self.molt.background.ingest_now()
        self.look()
