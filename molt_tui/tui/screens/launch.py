"""Launch by keyboard: pick a recipe, change what differs, see every problem at once, start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Footer, Input, Static

from molt_tui.tui import glyphs
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.source import Form, FormField, RecipeCard
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row

NAME, GROUP, START = "name", "group", "start"
ORIGIN = {"yours": ("● yours", "$text-warning"), "recipe": ("○ recipe", "$text-accent"), "default": ("  default", "$quiet")}


class LaunchScreen(MoltScreen):
    """The list of recipes; choosing one opens its form."""

    TITLE = "Launch"
    HELP = "Recipes that ship with molt-tui. enter opens the form of one; nothing starts before you say so there."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "back", "Back", id="launch.back")]

    def __init__(self) -> None:
        super().__init__()
        self.cards: dict[str, RecipeCard] = {}

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble((" Launch ", "bold reverse"), "  choose a recipe"), id="top")
        columns = (Column("Recipe", 22), Column("Title"), Column("Hardware", 18))
        yield KeyTable(columns, id="recipes", empty="  reading recipes ...")
        yield Static("", id="about", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(KeyTable).focus()

    def look(self) -> None:
        if not self.cards:
            self.ask("recipes", self.molt.source.recipes)

    def answered(self, topic: str, value: Sequence[RecipeCard]) -> None:
        self.cards = {card.name: card for card in value}
        table = self.query_one(KeyTable)
        table.set_empty("  no recipe found")
        table.set_rows([Row(c.name, ((c.name, "bold"), (c.problem or c.title, "$text-error" if c.problem else ""),
                                     (c.hardware, "$quiet"))) for c in value])  # fmt: skip

    @on(KeyTable.Highlighted)
    def _highlighted(self, event: KeyTable.Highlighted) -> None:
        card = self.cards.get(event.key or "")
        words = [] if card is None else [w for w in (card.task, card.model, card.problem) if w]
        update(self.query_one("#about", Static), Content.styled("\n".join(words), "$quiet"))

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        self.app.push_screen(FormScreen(event.key))

    def action_back(self) -> None:
        self.molt.go_back()


class FieldTable(KeyTable):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Edit", id="fields.edit")]


class FormScreen(MoltScreen):
    """Every flag of the tree, changed ones first. The line at the bottom edits the highlighted one."""

    TITLE = "Launch form"
    HELP = (
        "What you changed comes first, then what the recipe sets, then defaults; / searches flags and their help.\n"
        "enter edits the highlighted value, u takes your change back, ctrl+s starts the run when no problem is left."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "start", "Start", id="form.start"),
        Binding("slash", "search", "Search", id="form.search"),
        Binding("u", "undo", "Undo change", id="form.undo"),
        Binding("escape", "back", "Back", id="form.back"),
    ]

    def __init__(self, recipe: str) -> None:
        super().__init__()
        self.recipe = recipe
        self.changes: dict[str, str] = {}
        self.launch_as = {NAME: "", GROUP: ""}
        self.form: Form | None = None
        self.starting = False

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble((" Launch ", "bold reverse"), f"  {self.recipe}"), id="top")
        columns = (Column("Flag", 36), Column("Value"), Column("From", 9))
        yield FieldTable(columns, id="fields", empty="  no flag matches; esc clears the search")
        yield Static("", id="about", markup=False)
        yield Input(placeholder="part of a flag or of its help", id="search", compact=True)
        yield Input(id="value", compact=True)
        yield Static("", id="problems", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#search").display = False
        self.query_one("#value").display = False
        self.query_one(KeyTable).focus()

    def look(self) -> None:
        if self.form is None:
            self.resolve()

    def resolve(self) -> None:
        source, recipe, changes = self.molt.source, self.recipe, dict(self.changes)
        self.ask("form", lambda: source.form(recipe, changes))

    def answered(self, topic: str, value: Any) -> None:
        if topic == "form":
            self.form = value
            self.fill()
        elif topic == "trial":
            self._show_problems(value)
        elif topic == "launch":
            self.molt.opened_launch(value)

    def failed(self, topic: str, error: str) -> None:
        self.starting = False
        update(self.query_one("#problems", Static), Content.styled(f"{glyphs.MARK['critical']} {error}", "bold $text-error"))

    def fill(self) -> None:
        if self.form is None:
            return
        text = self.query_one("#search", Input).value.lower()
        rank = {"yours": 0, "recipe": 1, "default": 2}
        found = [f for f in self.form.fields if text in f.flag.lower() or text in f.help.lower()]
        rows = [] if text else [
            Row(START, ((f"{glyphs.state_look('running').glyph} Start run", "bold"), ("", ""), ("", ""))),
            *(Row(key, ((f"run {key}", ""), (value or "(chosen for you)" if key == NAME else value or "(none)",
                                             "" if value else "$quiet"), ("", "")))
              for key, value in self.launch_as.items()),
        ]  # fmt: skip
        for f in sorted(found, key=lambda f: rank[f.origin]):
            strong = "bold" if f.origin == "yours" else ("" if f.origin == "recipe" else "$quiet")
            rows.append(Row(f.flag, ((f.flag, strong), (f.value, strong), ORIGIN[f.origin])))
        self.query_one(KeyTable).set_rows(rows)
        self._show_about()
        self._show_problems()

    def _field(self, key: str | None) -> FormField | None:
        return next((f for f in self.form.fields if f.flag == key), None) if self.form else None

    def _show_about(self) -> None:
        key = self.query_one(KeyTable).cursor_key
        found = self._field(key)
        if found is not None:
            text = f"{found.help}\n{found.expects}; default {found.default or 'empty'}"
        elif key == START:
            text = f"starts this and opens its dashboard (also ctrl+s):\n{self.form.command if self.form else ''}"
        else:
            text = {NAME: "how the run is called in lists\n", GROUP: "runs of one experiment share a group\n"}.get(key or "", "")
        update(self.query_one("#about", Static), Content.styled(text, "$quiet"))

    def _show_problems(self, problems: Sequence[str] | None = None) -> None:
        """The form's problems, or those of a value that is being typed."""
        if problems is None:
            problems = self.form.problems if self.form else ()
        if problems:
            lines = [Content.styled(f"{glyphs.MARK['critical']} {p}", "$text-error") for p in problems[:3]]
            if len(problems) > 3:
                lines.append(Content.styled(f"  and {len(problems) - 3} more", "$text-error"))
            content = Content("\n").join(lines)
        else:
            changed = f"{len(self.changes)} changed, " if self.changes else ""
            content = Content.styled(f"{glyphs.MARK['good']} {changed}no problem: ctrl+s starts it", "$text-success")
        update(self.query_one("#problems", Static), content)

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_about()

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        if event.key == START:
            self.action_start()
            return
        found = self._field(event.key)
        box = self.query_one("#value", Input)
        box.value = self.launch_as[event.key] if found is None else found.value
        box.border_title = event.key
        box.display = True
        box.focus()

    @on(Input.Changed, "#value")
    def _editing(self, event: Input.Changed) -> None:
        """Live validation: the form is resolved again with what is typed so far."""
        key = self.query_one(KeyTable).cursor_key
        found = self._field(key)
        if event.input.display and found is not None:
            trial = {**self.changes, found.flag: event.value}
            source, recipe = self.molt.source, self.recipe
            self.ask("trial", lambda: source.form(recipe, trial).problems)

    @on(Input.Submitted, "#value")
    def _edited(self, event: Input.Submitted) -> None:
        key = self.query_one(KeyTable).cursor_key
        found = self._field(key)
        if found is not None and event.value != found.value:
            self.changes[found.flag] = event.value
            self.resolve()
        elif key in self.launch_as:
            self.launch_as[key] = event.value.strip()
        self._close_inputs()
        self.fill()

    @on(Input.Changed, "#search")
    def _searching(self) -> None:
        self.fill()

    @on(Input.Submitted, "#search")
    def _searched(self) -> None:
        self.query_one(KeyTable).focus()

    def _close_inputs(self) -> None:
        self.query_one("#value").display = False
        self.query_one(KeyTable).focus()

    def action_search(self) -> None:
        box = self.query_one("#search", Input)
        box.display = True
        box.focus()

    def action_undo(self) -> None:
        key = self.query_one(KeyTable).cursor_key
        if key in self.changes:
            del self.changes[key]
            self.resolve()
        elif key in self.launch_as:
            self.launch_as[key] = ""
            self.fill()

    def action_start(self) -> None:
        if self.form is None or self.form.problems:
            self.notify("not started: solve the problems below first", severity="warning", markup=False)
        elif not self.starting:
            self.starting = True
            update(self.query_one("#problems", Static), Content.styled("starting ...", "$text-accent"))
            source, changes = self.molt.source, dict(self.changes)
            recipe, name, group = self.recipe, self.launch_as[NAME], self.launch_as[GROUP]
            self.molt.background.act(self, "launch", lambda: source.launch(recipe, changes, name, group))

    def action_back(self) -> None:
        """One level: an edit, a search, then the list of recipes."""
        search = self.query_one("#search", Input)
        if self.query_one("#value").display:
            self._close_inputs()
            self._show_problems()
        elif search.display:
            search.value = ""
            search.display = False
            self.query_one(KeyTable).focus()
        else:
            self.molt.go_back()
