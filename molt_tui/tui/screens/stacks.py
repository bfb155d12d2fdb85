"""The stack dump of a Slurm run: what every process on every node is doing."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tui import glyphs
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.widgets.footer import KeyFooter


class StacksScreen(MoltScreen):
    TITLE = "Stacks"
    PART = True
    HELP = "The Python stack of every process of the run, on every node, newest call last. r asks the nodes again."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again", "Ask again", id="stacks.again"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="stacks.down"),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="stacks.up"),
        Binding("pagedown,ctrl+d,space", "scroll(20)", "Page down", id="stacks.page_down"),
        Binding("pageup,ctrl+u", "scroll(-20)", "Page up", show=False, id="stacks.page_up"),
        Binding("escape,backspace", "back", "Back", id="stacks.back"),
    ]

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__()
        self.run_id, self.run_name = run_id, name
        self.asking = False

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble((" Stacks ", "bold reverse"), f"  {self.run_name}"), id="top")
        with VerticalScroll(id="page", can_focus=False):
            yield Static("", id="body", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.action_again()

    def action_again(self) -> None:
        if not self.asking:
            self.asking = True
            self._say("asking every node; this takes some seconds ...", "$text-accent")
            source, run_id = self.molt.source, self.run_id
            self.molt.background.act(self, "stacks", lambda: source.stacks(run_id))

    def answered(self, topic: str, value: Any) -> None:
        self.asking = False
        self._say(value or "no process answered", "")

    def failed(self, topic: str, error: str) -> None:
        if topic == "stacks":
            self.asking = False
            self._say(f"{glyphs.MARK['critical']} {clean(error)}", "bold $text-error")

    def _say(self, text: str, style: str) -> None:
        self.query_one("#body", Static).update(Content.styled(text, style))

    def action_scroll(self, by: int) -> None:
        self.query_one("#page").scroll_relative(y=by, animate=False)

    def action_back(self) -> None:
        self.molt.go_back()
