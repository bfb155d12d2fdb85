"""The line of keys that act now."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey


class KeyFooter(Footer):
    """Textual's footer makes a widget of each key anew at every change of focus, and holds on to all that it has ever made.
    This one hides and shows those it has as long as they are enough, which is cheap while the cursor walks over runs."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)

    def _keys(self) -> dict[str, tuple[Any, ...]]:
        """What is to be shown: display of the first key of each action -> what makes its widget another one, and its words."""
        found: dict[str, tuple[Any, ...]] = {}
        for _, binding, enabled, tooltip in self.screen.active_bindings.values():
            if binding.show:
                found.setdefault(binding.action, (binding.key, enabled, tooltip, binding.description))
        return found

    def bindings_changed(self, screen: Screen) -> None:
        if not self.children or not self._reuse(self._keys()):
            super().bindings_changed(screen)

    def _reuse(self, wanted: dict[str, tuple[Any, ...]]) -> bool:
        """Show these by the widgets there are, if that can be."""
        made = {key.action: key for key in self.query(FooterKey)}
        if [action for action in made if action in wanted] != list(wanted):
            return False
        if any(self._made.get(action, ())[:3] != what[:3] for action, what in wanted.items()):
            return False
        for action, key in made.items():
            key.display = action in wanted
            if action in wanted and key.description != wanted[action][3]:
                key.description = wanted[action][3]
                key.refresh(layout=True)
        return True

    def compose(self) -> ComposeResult:
        self._made = self._keys()
        self.mutate_reactive(Footer.compact)  # lets go of the keys of before, which were bound to it
        yield from super().compose()
