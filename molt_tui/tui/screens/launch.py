"""The list of recipes that can be launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from molt_tui.tui import glyphs
from molt_tui.tui.launch_view import RecipeCard
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row


class LaunchScreen(MoltScreen):
    """The list of recipes; choosing one opens its form."""

    TITLE = "Launch"
    HELP = (
        "Recipes that ship with molt-tui. enter opens the form of one; nothing starts before you say so there.\n\n"
        "f opens a recipe of your own by its path. A recipe marked with ▲ needs more than this machine has; its form has Slurm."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "own_file", "Own file", id="launch.file"),
        Binding("escape", "back", "Back", id="launch.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.cards: dict[str, RecipeCard] = {}

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble((" Launch ", "bold reverse"), "  choose a recipe"), id="top")
        columns = (Column("Recipe", 22), Column("Title"), Column("Hardware", 18))
        yield KeyTable(columns, id="recipes", empty="  reading recipes ...")
        yield Static("", id="about", markup=False)
        yield Input(placeholder="path of a recipe, a TOML file of your own", id="file", compact=True)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#file").display = False
        self.query_one(KeyTable).focus()

    def look(self) -> None:
        if not self.cards:
            self.ask("recipes", self.molt.source.recipes)

    def answered(self, topic: str, value: Sequence[RecipeCard]) -> None:
        self.cards = {card.name: card for card in value}
        table = self.query_one(KeyTable)
        table.set_empty("  no recipe found")
        table.set_rows([_row(card) for card in value])

    @on(KeyTable.Highlighted)
    def _highlighted(self, event: KeyTable.Highlighted) -> None:
        card = self.cards.get(event.key or "")
        if card is None:
            return
        what = ", ".join(words for words in (card.task, card.model) if words)
        trouble = card.problem or (f"here: {card.misfit}" if card.misfit else "")
        lines = [Content.styled(line, "$quiet") for line in (what, trouble) if line]
        update(self.query_one("#about", Static), Content("\n").join(lines))

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        self.molt.open_form(event.key)

    def action_own_file(self) -> None:
        box = self.query_one("#file", Input)
        box.display = True
        box.focus()

    @on(Input.Submitted, "#file")
    def _named(self, event: Input.Submitted) -> None:
        path = event.value.strip()
        self._close()
        if path:
            self.molt.open_form(path if "/" in path or path.endswith(".toml") else f"./{path}")

    def _close(self) -> None:
        self.query_one("#file").display = False
        self.query_one(KeyTable).focus()

    def action_back(self) -> None:
        if self.query_one("#file").display:
            self._close()
        else:
            self.molt.go_back()


def _row(card: RecipeCard) -> Row:
    hardware = f"{glyphs.MARK['warning']} {card.hardware}" if card.misfit else card.hardware
    title = (card.problem or card.title, "$text-error" if card.problem else "")
    return Row(card.name, ((card.name, "bold"), title, (hardware, "$text-warning" if card.misfit else "$quiet")))
