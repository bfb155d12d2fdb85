"""The line of keys that act now."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer


class KeyFooter(Footer):
    """Textual's footer makes a widget of each key anew at every change of focus, and holds on to all that it has ever made."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._composed: tuple[Any, ...] | None = None

    def _keys(self) -> tuple[Any, ...]:
        return tuple((b.key, b.description, b.action, enabled, tooltip)
                     for _, b, enabled, tooltip in self.screen.active_bindings.values() if b.show)  # fmt: skip

    def bindings_changed(self, screen: Screen) -> None:
        if not self.children or self._keys() != self._composed:
            super().bindings_changed(screen)

    def compose(self) -> ComposeResult:
        self._composed = self._keys()
        self.mutate_reactive(Footer.compact)  # lets go of the keys of before, which were bound to it
        yield from super().compose()
