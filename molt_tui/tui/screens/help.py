"""Help for the focused pane: what it shows and every key that acts there."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from molt_tui.tui.screens.dialogs import Dialog
from molt_tui.tui.widgets.panel import Panel

NAMES = {
    "question_mark": "?", "exclamation_mark": "!", "colon": ":", "slash": "/",
    "left_square_bracket": "[", "right_square_bracket": "]", "left_curly_bracket": "{", "right_curly_bracket": "}",
    "pageup": "page up", "pagedown": "page down", "escape": "esc",
}  # fmt: skip


def key_name(key: str) -> str:
    return NAMES.get(key, key)


def keys_of(bindings: dict[str, ActiveBinding]) -> list[tuple[str, str]]:
    """(keys, what they do) for every action that is bound now, one line per action, in the order of binding; without what
    Textual binds by itself, which has no id."""
    found: dict[str, tuple[list[str], str]] = {}
    for key, active in bindings.items():
        binding = active.binding
        if binding.id and binding.description and not binding.system and not key.startswith("super+"):
            found.setdefault(binding.action, ([], binding.description))[0].append(key_name(key))
    return [(" ".join(keys), description) for keys, description in found.values()]


class HelpScreen(Dialog[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "dismiss", "Close", id="help.close"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="help.down"),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="help.up"),
        Binding("pagedown,space,ctrl+d", "page(1)", "Page down", show=False, id="help.page_down"),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False, id="help.page_up"),
        Binding("end,G", "scroll(10000)", "End", show=False, id="help.end"),
        Binding("home,g", "scroll(-10000)", "Begin", show=False, id="help.begin"),
    ]

    def __init__(self, title: str, text: str, keys: list[tuple[str, str]]) -> None:
        super().__init__()
        self.heading, self.text, self.keys = title, text, keys

    @classmethod
    def for_screen(cls, screen: Screen) -> HelpScreen:
        """Help for what has the focus on this screen; a pane without words of its own shows the screen's."""
        focused = screen.focused
        words = getattr(screen, "HELP", "")
        title = screen.title or type(screen).__name__
        if isinstance(focused, Panel):
            words, title = f"{focused.HELP}\n\n{words}", f"{title}: {focused.TITLE}"
        return cls(title, words, keys_of(screen.active_bindings))

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog", can_focus=False):
            yield Static(self.heading, id="question", markup=False)
            yield Static("\n\n".join(part.replace("\n", " ") for part in self.text.split("\n\n")), id="detail", markup=False)
            lines = [Content.assemble((keys.rjust(24), "bold $text-accent"), "  ", words) for keys, words in self.keys]
            yield Static(Content("\n").join(lines), id="keys")

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False, immediate=True)

    def action_page(self, pages: int) -> None:
        self.action_scroll(pages * max(1, self.query_one(VerticalScroll).size.height - 1))
