"""Going back in time on the dashboard: one step is shown by every panel, until `n` returns to the newest one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.curves import CurvePanel


class Scrubbing:
    """Mixin of a screen with a `view` of a run. `at` is the step that is shown, None for the newest."""

    SCRUB: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "scrub(-1)", "Past", id="scrub.back", tooltip="one step back in time"),
        Binding("right_square_bracket", "scrub(1)", "Later", show=False, id="scrub.on"),
        Binding("left_curly_bracket", "scrub(-10)", "Ten steps back", show=False, id="scrub.back_ten"),
        Binding("right_curly_bracket", "scrub(10)", "Ten steps on", show=False, id="scrub.on_ten"),
        Binding("n", "live", "Live", show=False, id="scrub.live"),
    ]
    FIRST_STEP: ClassVar[int] = 1

    at: int | None = None
    view: RunView | None = None

    if TYPE_CHECKING:

        def look(self) -> None: ...

        def show_head(self) -> None: ...

        def refresh_bindings(self) -> None: ...

    def go_to(self, step: int | None) -> None:
        """Show a step; the newest one and everything behind it is live."""
        newest = self.view.newest_step if self.view is not None else None
        wanted = None if step is None or newest is None or step >= newest else max(self.FIRST_STEP, step)
        if wanted != self.at:
            self.at = wanted
            self.show_head()
            self.refresh_bindings()
            self.look()

    def action_scrub(self, by: int) -> None:
        newest = self.view.newest_step if self.view is not None else None
        if newest is not None:
            self.go_to((newest if self.at is None else self.at) + by)

    def action_live(self) -> None:
        self.go_to(None)

    def on_curve_panel_moved(self, message: CurvePanel.Moved) -> None:
        self.action_scrub(message.by * message.size)
