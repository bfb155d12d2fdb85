"""Which screens stay beneath the one that is opened: the one place that decides, so that no way through the app piles them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen
from textual.widget import AwaitMount

from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.dialogs import MIN_HEIGHT, MIN_WIDTH, TooSmall

if TYPE_CHECKING:
    from molt_tui.draft import Draft
    from molt_tui.tokens import Place

DRAFTS_KEPT = 8
BETWEEN = 4  # screens between the first and the one on top: the longest way down is compare, run, traces, group, tokens


def leaving(stack: Sequence[Screen[Any]], new: Screen[Any]) -> list[Screen[Any]]:
    """What goes from beneath `new`: dialogs, and the older screen of its kind with the parts that were opened from it.

    The first screen stays, and so do the last few others, in their order: esc leads back through them.
    """
    gone, with_parts = [], False
    for screen in stack[1:]:
        same = type(screen) is type(new)
        if not getattr(screen, "PART", False):
            with_parts = same
        if same or with_parts or isinstance(screen, ModalScreen):
            gone.append(screen)
    rest = [screen for screen in stack[1:] if screen not in gone]
    return gone + rest[: max(0, len(rest) - BETWEEN)]


class Places(App[str]):
    """Every screen that is not a dialog is opened and left here; the stack holds few, and at most one of each kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drafts: dict[tuple[str, str], Draft] = {}

    def go_to(self, screen: MoltScreen) -> AwaitMount:
        """Show a screen above all that stays; one that is beneath comes up as it was left."""
        gone = leaving(self.screen_stack, screen)
        for old in gone:  # Textual itself takes only the top screen off its stack
            self._screen_stack.remove(old)
            old._pop_result_callback()
        mounted = self.push_screen(screen)
        for old in gone:
            if old is not screen:
                AwaitComplete(self._replace_screen(old)).call_next(self)
        self.cover_if_small(*self.size)
        return mounted

    def go_back(self) -> None:
        """To the screen before; the first one stays."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def go_home(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def cover_if_small(self, width: int, height: int) -> None:
        """The card that asks for a larger terminal lies above every screen for as long as it is needed."""
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        if small and not isinstance(self.screen, TooSmall):
            self.push_screen(TooSmall())
        elif not small and isinstance(self.screen, TooSmall):
            self.pop_screen()

    def open_run(self, run_id: str) -> AwaitMount:
        from molt_tui.tui.screens.run import RunScreen

        return self.go_to(RunScreen(run_id))

    def open_traces(self, run_id: str) -> None:
        from molt_tui.tui.screens.traces import TracesScreen

        self.go_to(TracesScreen(run_id))

    def open_tokens(self, run_id: str, place: Place, others: Sequence[Place] = ()) -> None:
        """One recorded rollout; `others`: those before and after it in the list it was chosen from."""
        from molt_tui.tui.screens.tokens import TokenScreen

        self.go_to(TokenScreen(run_id, place, others))

    def open_group(self, run_id: str, place: Place) -> None:
        """The recorded rollouts of the group of this one."""
        from molt_tui.tui.screens.group import GroupScreen

        self.go_to(GroupScreen(run_id, place))

    def action_query(self) -> None:
        """The Query screen; it keeps its text and result while one looks at runs."""
        from molt_tui.tui.screens.query import QueryScreen

        if not self.is_screen_installed("query"):
            self.install_screen(QueryScreen(), "query")
        found = self.get_screen("query", QueryScreen)
        if found is not self.screen:
            self.go_to(found)

    def open_launch(self) -> None:
        from molt_tui.tui.screens.launch import LaunchScreen

        self.go_to(LaunchScreen())

    def open_compare(self, refs: Sequence[str]) -> None:
        """Runs by id and groups as `group:NAME` side by side."""
        from molt_tui.tui.screens.compare import CompareScreen

        self.go_to(CompareScreen(refs))

    def open_form(self, recipe: str = "", parent: str = "") -> None:
        """The launch form of a recipe, or of a run that is to be launched again."""
        from molt_tui.tui.screens.form import FormScreen

        self.go_to(FormScreen(recipe, parent))

    def open_cluster(self) -> None:
        from molt_tui.tui.screens.cluster import ClusterScreen

        self.go_to(ClusterScreen())

    def kept_draft(self, recipe: str, parent: str) -> Draft | None:
        """What was changed in this form and not launched before it was left."""
        return self._drafts.get((recipe, parent))

    def keep_draft(self, recipe: str, parent: str, draft: Draft | None) -> None:
        """Remember the changes of the last few forms; None: there are no more."""
        self._drafts.pop((recipe, parent), None)
        if draft is not None:
            self._drafts[recipe, parent] = draft
            if len(self._drafts) > DRAFTS_KEPT:
                del self._drafts[next(iter(self._drafts))]

    def forget_draft(self, launched: Draft | None) -> None:
        self._drafts = {form: draft for form, draft in self._drafts.items() if draft != launched}
