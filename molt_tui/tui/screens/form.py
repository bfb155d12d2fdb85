"""The launch form: every flag of the tree, each problem on its field, where it runs, sweeps and seeds; then the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from molt_tui.draft import Draft
from molt_tui.text import clean
from molt_tui.tui import glyphs
from molt_tui.tui.launch_view import Form, FormField, Started
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row

START, ON = "start", "on"
# Lines of the draft itself: key -> (label, shown when empty, what it is).
OWN = {
    "name": ("run name", "(chosen for you)", "how the run is called in lists"),
    "group": ("run group", "(none)", "runs of one experiment share a group; a sweep and several seeds make one by themselves"),
    "seeds": ("run seeds", "1", "this many runs, train.seed counting up: one group with mean and spread"),
    "samples": ("run random", "(every combination)", "draw this many combinations of the sweep instead of trying all"),
}
ORIGIN = {"yours": ("● yours", "$text-warning"), "sweep": ("▲ sweep", "$text-warning"), "run": ("○ run", "$text-accent"),
          "recipe": ("○ recipe", "$text-accent"), "site": ("○ site", "$text-accent"),
          "default": ("  default", "$quiet")}  # fmt: skip
RANK = {"yours": 0, "sweep": 0, "run": 2, "recipe": 2, "site": 2, "default": 3}
# What a launch on Slurm nearly always looks at.
SLURM_FIRST = tuple(
    f"slurm.{name}" for name in ("partition", "account", "nodes", "gpus_per_node", "gpu_type", "time", "qos", "mem")
)


def ordered(form: Form, on: str, text: str) -> list[FormField]:
    """Fields that match the search: problems and changes first, on Slurm its main fields, then the recipe's, then defaults."""
    found = [f for f in form.fields if text in f.flag.lower() or text in f.help.lower()]

    def rank(one: FormField) -> tuple[int, int]:
        if text:  # named so, then so in part, then only explained so
            return (0 if one.flag == text else 1 if text in one.flag.lower() else 2), RANK[one.origin]
        if one.problem:
            return -1, 0
        if on == "slurm" and one.flag in SLURM_FIRST and RANK[one.origin] > 0:
            return 1, SLURM_FIRST.index(one.flag)
        return RANK[one.origin], 0

    return sorted(found, key=rank)


class FieldTable(KeyTable):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Edit", id="fields.edit")]


class FormScreen(MoltScreen):
    """The lines at the bottom say what the highlighted field means and what is wrong; an input there edits it."""

    TITLE = "Launch form"
    HELP = (
        "Fields with a problem and those you changed come first, then what the recipe (or the old run) sets, then defaults;"
        " / searches flags and their help.\n"
        "enter edits the highlighted value, space takes the next of a short list, u takes your change back."
        " What you changed is here again when you come back.\n\n"
        "w sweeps a field: give values 1e-6,1e-5 (lists: 0.9,0.95|0.9,0.99), or a range 0..0.2 or log:1e-6..1e-4 together"
        " with `run random`. Several swept fields make a grid.\n\n"
        "o changes between this machine and Slurm. v shows the command, the batch script, the memory table and what differs"
        " from a past run. ctrl+s starts; on Slurm, and for several runs, it shows that first. What keeps it from starting is"
        " said below, and both keys put the cursor on it."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", id="form.search"),
        Binding("w", "sweep", "Sweep", id="form.sweep"),
        Binding("u", "undo", "Undo", id="form.undo"),
        Binding("o", "other_place", "Local/Slurm", id="form.where"),
        Binding("space", "next_choice", "Next value", show=False, id="form.next"),
        Binding("v", "review", "Review", id="form.review"),
        Binding("ctrl+s", "start", "Start", id="form.start"),
        Binding("escape", "back", "Back", show=False, id="form.back"),
    ]

    def __init__(self, recipe: str = "", parent: str = "") -> None:
        super().__init__()
        self.recipe, self.parent_run = recipe, parent
        self.first: Draft | None = None  # as it was opened, before anything was changed
        self.draft: Draft | None = None
        self.form: Form | None = None
        self.resolved: Draft | None = None  # what `form` is about; the draft may have changed since
        self.then: Callable[[], None] | None = None  # a key that waits for the form of the newest changes
        self.editing: tuple[str, bool] | None = None  # (key, whether it is swept)
        self.starting = False

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        columns = (Column("Flag", 34), Column("Value"), Column("From", 10))
        yield FieldTable(columns, id="fields", empty="  reading the recipe ...")
        yield Static("", id="about", markup=False)
        yield Input(placeholder="part of a flag or of its help", id="search", compact=True)
        yield Input(id="value", compact=True)
        yield Static("", id="problems", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#search").display = False
        self.query_one("#value").display = False
        self.query_one(KeyTable).focus()

    def look(self) -> None:
        if self.draft is None:
            source, recipe, parent = self.molt.source, self.recipe, self.parent_run
            self.ask("draft", lambda: source.first_draft(recipe, parent))
        elif self.form is None:
            self.resolve()

    def resolve(self) -> None:
        source, draft = self.molt.source, self.draft
        if draft is not None:
            self.ask("form", lambda: (draft, source.form(draft)))

    def change(self, draft: Draft) -> None:
        """Changes outlive the screen until they are launched or taken back."""
        self.draft, self.then = draft, None
        self.molt.keep_draft(self.recipe, self.parent_run, draft if draft != self.first else None)
        self.resolve()

    def _begin(self, first: Draft) -> None:
        kept = self.molt.kept_draft(self.recipe, self.parent_run)
        self.first = first
        self.change(kept or first)
        if kept is not None:
            self.notify("your changes of before are here again; u on one takes it back", markup=False)

    def answered(self, topic: str, value: Any) -> None:
        if topic == "draft":
            self._begin(value)
        elif topic == "form":
            self.resolved, self.form = value
            self.query_one(KeyTable).set_empty("  no flag matches; esc clears the search")
            self.fill()
            if self.then is not None and self.resolved is self.draft and self.is_current:
                self.then()
        elif topic == "trial" and self.editing is not None:
            self._show_problems(value)
        elif topic == "launch":
            self.started(value)

    def started(self, value: Started) -> None:
        if value.words:
            self.notify("\n".join(value.words[-3:]), markup=False)
        self.molt.opened_launch(self.draft, value.ids)

    def failed(self, topic: str, error: str) -> None:
        self.starting, self.then = False, None
        update(
            self.query_one("#problems", Static), Content.styled(f"{glyphs.MARK['critical']} {clean(error)}", "bold $text-error")
        )

    def fill(self) -> None:
        form, draft = self.form, self.draft
        if form is None or draft is None:
            return
        text = self.query_one("#search", Input).value.lower().strip()
        rows = [] if text else self._own_rows(draft)
        for one in ordered(form, draft.on, text):
            strong = "bold" if one.origin in ("yours", "sweep") else "$quiet" if one.origin == "default" else ""
            where = (f"{glyphs.MARK['critical']} wrong", "bold $text-error") if one.problem else ORIGIN[one.origin]
            rows.append(Row(one.flag, ((one.flag, strong), (one.value or "(empty)", strong), where)))
        self.query_one(KeyTable).set_rows(rows)
        self._show_top()
        self._show_about()
        self._show_problems()

    def _own_rows(self, draft: Draft) -> list[Row]:
        place = "Slurm" if draft.on == "slurm" else "this machine"
        rows = [Row(START, ((f"{glyphs.state_look('running').glyph} Start run", "bold"), ("", ""), ("", ""))),
                Row(ON, (("run on", ""), (place, "bold" if draft.on == "slurm" else ""), ("", "")))]  # fmt: skip
        for key, (label, empty, _) in OWN.items():
            if key != "samples" or draft.sweeps:
                value = clean(getattr(draft, key))
                rows.append(Row(key, ((label, ""), (value or empty, "" if value else "$quiet"), ("", ""))))
        return rows

    def _show_top(self) -> None:
        form, draft = self.form, self.draft
        assert form is not None and draft is not None
        what = f"{form.recipe}  again, from {draft.parent}" if draft.parent else form.recipe
        count = f"{form.runs} runs" if form.runs > 1 else ""
        facts = "  ".join(word for word in (f"on {form.where}", count) if word)
        if self.editing is not None:
            key, swept = self.editing
            what = f"sweep {key}: values a,b or low..high" if swept else f"{key}: enter keeps the value, esc leaves it as it was"
            facts = ""
        update(self.query_one("#top", Static), Content.assemble(
            (" Launch ", "bold reverse"), f"  {what}  ", (facts, "bold $text-accent" if count else "$quiet")))  # fmt: skip

    def _field(self, key: str | None) -> FormField | None:
        return next((f for f in self.form.fields if f.flag == key), None) if self.form else None

    @property
    def key(self) -> str | None:
        return self.query_one(KeyTable).cursor_key

    def _show_about(self) -> None:
        """Two lines about the highlighted field: what it is, what it takes or what is wrong with it."""
        found = self._field(self.key)
        if found is not None:
            second = Content.styled(f"{found.expects}; default {found.default or 'empty'}", "$quiet")
            if found.problem:
                second = Content.styled(f"{glyphs.MARK['critical']} {found.problem}", "$text-error")
            content = Content("\n").join([Content.styled(found.help, "$quiet"), second])
        else:
            words = {START: f"starts this (ctrl+s):\n{self.form.command if self.form else ''}",
                     ON: "where it runs: o or enter changes between this machine and Slurm",
                     **{key: about for key, (_, _, about) in OWN.items()}}  # fmt: skip
            content = Content.styled(words.get(self.key or "", ""), "$quiet")
        update(self.query_one("#about", Static), content)

    def _show_problems(self, form: Form | None = None, *, kept: str = "") -> None:
        """The form's problems, or those of a value that is being typed; `kept`: what they have just kept from happening."""
        form = form or self.form
        if form is None:
            return
        if form.problems:
            strong = "bold reverse $text-error" if kept else "$text-error"
            before = f"{kept}: " if kept else ""
            lines = [Content.styled(f"{glyphs.MARK['critical']} {before}{p}", strong) for p in form.problems[:3]]
            if len(form.problems) > 3:
                lines.append(Content.styled(f"  and {len(form.problems) - 3} more, each on its field", "$text-error"))
            content = Content("\n").join(lines)
        else:
            changed = sum(f.origin in ("yours", "sweep") for f in form.fields)
            words = f"{changed} changed, " if changed else ""
            content = Content.styled(f"{glyphs.MARK['good']} {words}no problem: ctrl+s {self._starts(form)}", "$text-success")
        update(self.query_one("#problems", Static), content)

    def _starts(self, form: Form) -> str:
        it = f"{form.runs} runs" if form.runs > 1 else "it"
        if self.draft is not None and self.draft.on == "slurm":
            return f"checks {it} with Slurm, then submits"
        return f"shows {it}, then starts" if form.runs > 1 else "starts it"

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_about()

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        if event.key == START:
            self.action_start()
        elif event.key == ON:
            self.action_other_place()
        elif self.draft is not None:
            self._edit(event.key, event.key in self.draft.sweeps)

    def _edit(self, key: str, swept: bool) -> None:
        found, draft = self._field(key), self.draft
        assert draft is not None
        self.editing = key, swept
        box = self.query_one("#value", Input)
        box.placeholder = "values such as 1e-6,1e-5 or a range such as log:1e-6..1e-4" if swept else key
        box.value = getattr(draft, key) if found is None else found.value
        box.display = True
        box.focus()
        self._show_top()

    def _with(self, text: str) -> Draft | None:
        """The draft with what is in the input."""
        if self.editing is None or self.draft is None:
            return None
        key, swept = self.editing
        if key in OWN:
            return replace(self.draft, **{key: text.strip()})
        changes, sweeps = dict(self.draft.changes), dict(self.draft.sweeps)
        if swept:
            changes.pop(key, None)
            sweeps[key] = text.strip()
        else:
            changes[key] = text
        return replace(self.draft, changes=changes, sweeps=sweeps)

    @on(Input.Changed, "#value")
    def _typing(self, event: Input.Changed) -> None:
        """Live validation: the form is resolved again with what is typed so far."""
        trial, source = self._with(event.value), self.molt.source
        found = self._field(self.editing[0] if self.editing else None)
        if found is not None and event.value == found.value:
            trial = self.draft  # opened, not changed
        if trial is not None and event.input.display:
            self.ask("trial", lambda: source.form(trial))

    @on(Input.Submitted, "#value")
    def _edited(self, event: Input.Submitted) -> None:
        self._keep(event.value)

    def _keep(self, text: str) -> None:
        """What was typed becomes the value."""
        draft, editing = self._with(text), self.editing
        found = self._field(editing[0] if editing else None)
        self._close_inputs()
        if draft is None or editing is None or (found is not None and not editing[1] and text == found.value):
            self._show_problems()
        elif editing[1] and not text.strip():
            self.action_undo()
        else:
            self.change(draft)

    @on(Input.Changed, "#search")
    def _searching(self, event: Input.Changed) -> None:
        self.fill()
        table = self.query_one(KeyTable)
        if table.rows and event.value.strip():
            table.point_at(table.rows[0].key)

    @on(Input.Submitted, "#search")
    def _searched(self) -> None:
        self.query_one(KeyTable).focus()

    def _close_inputs(self) -> None:
        self.editing = None
        self.query_one("#value").display = False
        self.query_one(KeyTable).focus()
        self._show_top()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action == "start" and self.molt.chosen.read_only)

    def action_search(self) -> None:
        box = self.query_one("#search", Input)
        box.display = True
        box.focus()

    def action_sweep(self) -> None:
        if self._field(self.key) is None:
            self.notify("w sweeps a flag: move to one, or search it with /", markup=False)
        elif self.key is not None:
            self._edit(self.key, True)

    def action_next_choice(self) -> None:
        found = self._field(self.key)
        if self.key == ON:
            self.action_other_place()
        elif found is not None and found.choices and self.draft is not None:
            at = found.choices.index(found.value) + 1 if found.value in found.choices else 0
            value = found.choices[at % len(found.choices)]
            self.change(replace(self.draft, changes={**self.draft.changes, found.flag: value}))

    def action_undo(self) -> None:
        draft, key = self.draft, self.key
        if draft is None or key is None:
            return
        if key in OWN:
            self.change(replace(draft, **{key: Draft.__dataclass_fields__[key].default}))
        elif key in draft.changes or key in draft.sweeps:
            changes = {k: v for k, v in draft.changes.items() if k != key}
            sweeps = {k: v for k, v in draft.sweeps.items() if k != key}
            self.change(replace(draft, changes=changes, sweeps=sweeps))

    def action_other_place(self) -> None:
        if self.draft is not None:
            self.change(replace(self.draft, on="local" if self.draft.on == "slurm" else "slurm"))

    def _to_first_problem(self) -> None:
        """The cursor on the first line that is wrong, where enter repairs it; the search gives way."""
        form, draft = self.form, self.draft
        assert form is not None and draft is not None
        search = self.query_one("#search", Input)
        with self.prevent(Input.Changed):
            search.value, search.display = "", False
        own = [key for key, (label, _, _) in OWN.items() if any(problem.startswith(label) for problem in form.problems)]
        wrong = [*own, *(one.flag for one in ordered(form, draft.on, "") if one.problem)]
        self.fill()
        if wrong:
            self.query_one(KeyTable).point_at(wrong[0])

    def _newest_form(self, then: Callable[[], None]) -> Form | None:
        """The form of the draft as it is now; while that is being resolved `then` is called after it."""
        self.then = then if self.resolved is not self.draft else None
        return self.form if self.then is None else None

    def action_review(self) -> None:
        """Valid settings are shown whatever keeps them from starting; else the cursor goes to what must be repaired."""
        from molt_tui.tui.screens.review import ReviewScreen

        form, draft = self._newest_form(self.action_review), self.draft
        if form is None or draft is None:
            return
        if form.problems:
            self._to_first_problem()
        if form.reviewable:
            self.molt.go_to(ReviewScreen(draft, form.problems))
        else:
            self._show_problems(kept="no review yet")

    def action_start(self) -> None:
        """A single local run starts at once, with the value that is being typed; anything else is shown first."""
        if self.editing is not None:
            self._keep(self.query_one("#value", Input).value)
        form, draft, source = self._newest_form(self.action_start), self.draft, self.molt.source
        if self.starting or draft is None or form is None:
            return
        if form.problems:
            self._to_first_problem()
            self._show_problems(kept="not started")
            return
        if draft.on == "slurm" or form.runs > 1:
            self.action_review()
            return
        self.starting = True
        update(self.query_one("#problems", Static), Content.styled("starting ...", "$text-accent"))
        self.molt.background.act(self, "launch", lambda: source.launch(draft), self.molt)

    def action_back(self) -> None:
        """One level: an edit, a search, then the screen before."""
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
