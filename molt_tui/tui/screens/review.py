"""The last look before a launch: checks, memory, what differs from a past run, batch script, runs and the exact command."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from molt_tui.draft import Draft
from molt_tui.text import clean
from molt_tui.tui import glyphs
from molt_tui.tui.launch_view import Checks, PastRun, Review, Started
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.dialogs import Dialog
from molt_tui.tui.screens.review_pages import PAGES, Looked, pages_of
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row


class PickRun(Dialog[str]):
    """Which past run to compare with."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "Cancel", id="pick.cancel")]

    def __init__(self, runs: Sequence[PastRun]) -> None:
        super().__init__()
        self.runs = runs

    def compose(self) -> ComposeResult:
        yield Static(Content.styled(" Compare with which run? enter chooses, esc leaves it ", "bold reverse"), id="top")
        yield KeyTable((Column("Run"), Column("State", 11), Column("Recipe", 20), Column("Made", 12)), id="past",
                       empty="  there is no past run")  # fmt: skip

    def on_mount(self) -> None:
        table = self.query_one(KeyTable)
        table.set_rows([Row(r.id, ((r.name, ""), (glyphs.state_look(r.state).word, glyphs.state_look(r.state).style),
                                   (r.recipe, "$quiet"), (_when(r.created), "$quiet"))) for r in self.runs])  # fmt: skip
        table.focus()

    @on(KeyTable.Chosen)
    def _chosen(self, event: KeyTable.Chosen) -> None:
        self.dismiss(event.key)

    def action_cancel(self) -> None:
        self.dismiss(None)


class ReviewScreen(MoltScreen):
    TITLE = "Review"
    PART = True
    HELP = (
        "Everything that this launch would do, and what keeps it from starting. Nothing has been made yet.\n\n"
        "tab walks the pages. d chooses the past run to compare with. t shows the batch script whole or as a diff."
        " r asks Slurm again. ctrl+s starts or submits, once: a receipt is written before, and a second press does nothing."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,l", "page(1)", "Next page", id="review.next"),
        Binding("shift+tab,left,h", "page(-1)", "Previous page", show=False, id="review.previous"),
        Binding("d", "against", "Compare with", id="review.against"),
        Binding("t", "whole", "Diff/whole", id="review.whole"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="review.down"),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="review.up"),
        Binding("pagedown,ctrl+d", "scroll(12)", "Page down", show=False, id="review.page_down"),
        Binding("pageup,ctrl+u", "scroll(-12)", "Page up", show=False, id="review.page_up"),
        Binding("ctrl+s", "start", "Start", id="review.start"),
        Binding("escape,backspace", "back", "Back", id="review.back"),
    ]

    def __init__(self, draft: Draft, problems: Sequence[str] = ()) -> None:
        """`problems`: what keeps it from starting; it is shown all the same."""
        super().__init__()
        self.draft, self.problems = draft, problems
        self.pages = pages_of(draft.on == "slurm", bool(problems))
        self.page = self.pages[0]
        self.review: Review | None = None
        self.checks: Checks | None = None
        self.error = ""
        self.against: str | None = None
        self.whole = False
        self.busy = ""  # "checking" or "starting"

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield Static("", id="command", markup=False)
        yield Static("", id="pages", markup=False)
        with VerticalScroll(id="page", can_focus=False):
            yield Static("", id="body", markup=False)
        yield Static("", id="problems", markup=False)
        yield KeyFooter()

    def look(self) -> None:
        if self.review is None and not self.error:
            self.action_look()

    def action_look(self) -> None:
        self._ask_review()
        if self.draft.on == "slurm" and not self.busy and not self.problems:
            self.busy, self.error, self.checks = "checking", "", None
            source, draft = self.molt.source, self.draft
            self.molt.background.act(self, "checks", lambda: source.checks(draft))
        self.fill()

    def _ask_review(self) -> None:
        source, draft, against = self.molt.source, self.draft, self.against
        self.ask("review", lambda: source.review(draft, against))

    def answered(self, topic: str, value: Any) -> None:
        if topic == "review":
            self.review = value
        elif topic == "checks":
            self.checks, self.busy = value, ""
        elif topic == "past":
            self.app.push_screen(PickRun(value), self._picked)
        elif topic == "launch":
            self._started(value)
            return
        self.fill()

    def _started(self, value: Started) -> None:
        self.notify(str(value), markup=False, timeout=8)
        self.molt.opened_launch(self.draft, value.ids)

    def failed(self, topic: str, error: str) -> None:
        self.error = clean(error)
        if topic in ("checks", "launch"):
            self.busy = ""
        self.fill()

    def fill(self) -> None:
        where = "Slurm" if self.draft.on == "slurm" else "this machine"
        count = len(self.review.runs) if self.review else 1
        what = f"  {clean(self.draft.recipe)} on {where}"
        what += f", {count} runs as group {self.review.group}" if self.review and count > 1 else ""
        update(self.query_one("#top", Static), Content.assemble((" Review ", "bold reverse"), what))
        update(self.query_one("#command", Static), Content(self.review.command if self.review else ""))
        tabs: list[tuple[str, str] | str] = []
        for page in self.pages:
            tabs += [(f" {page} ", "bold reverse" if page == self.page else "$quiet"), " "]
        update(self.query_one("#pages", Static), Content.assemble(*tabs))
        width = max(40, self.app.size.width - 2)
        body = PAGES[self.page](Looked(self.review, self.checks, self.whole, width, self.problems)) if self.review else []
        update(self.query_one("#body", Static), Content("\n").join(body))
        update(self.query_one("#problems", Static), self._status())

    def on_resize(self, event: events.Resize) -> None:
        self.fill()

    def _status(self) -> Content:
        """One line: what is going on, or whether ctrl+s may be pressed."""
        if self.busy == "starting":
            words = "submitting: the receipt is written, waiting for Slurm ..." if self.draft.on == "slurm" else "starting ..."
            return Content.styled(words, "$text-accent")
        if self.error:
            return Content.styled(f"{glyphs.MARK['critical']} {self.error}", "bold $text-error")
        if self.busy:
            return Content.styled("asking Slurm about partition, limits, account and start ...", "$text-accent")
        if self.review is None:
            return Content.styled("putting it together ...", "$text-accent")
        if self.problems:
            count = f"{len(self.problems)} problems keep" if len(self.problems) > 1 else "a problem keeps"
            return Content.styled(
                f"{glyphs.MARK['critical']} {count} it from starting: esc goes back to repair", "bold $text-error"
            )
        count = len(self.review.runs)
        verb = "submits" if self.draft.on == "slurm" else "starts"
        if self.checks is not None and self.checks.refused:
            return Content.styled(
                f"{glyphs.MARK['critical']} Slurm would refuse it: esc goes back to change it", "bold $text-error"
            )
        start = f"{self.checks.start}; " if self.checks and self.checks.start else ""
        it = f"{count} runs" if count > 1 else "it"
        if self.review.warning:
            return Content.styled(f"{glyphs.MARK['warning']} {self.review.warning}; ctrl+s {verb} {it}", "bold $text-warning")
        return Content.styled(f"{glyphs.MARK['good']} {start}ctrl+s {verb} {it}", "$text-success")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self.problems or self.molt.chosen.read_only) if action == "start" else True

    def action_page(self, by: int) -> None:
        self.page = self.pages[(self.pages.index(self.page) + by) % len(self.pages)]
        self.query_one("#page").scroll_home(animate=False)
        self.fill()

    def action_scroll(self, by: int) -> None:
        self.query_one("#page").scroll_relative(y=by, animate=False)

    def action_whole(self) -> None:
        self.whole = not self.whole
        if "Script" in self.pages:
            self.page = "Script"
        self.fill()

    def action_against(self) -> None:
        source, draft = self.molt.source, self.draft
        self.ask("past", lambda: source.past_runs(draft))

    def _picked(self, run_id: str | None) -> None:
        if run_id:
            self.against, self.page = run_id, "Changes"
            self.error = ""
            self._ask_review()

    def action_start(self) -> None:
        if self.busy == "starting":
            return
        if self.review is None or self.busy or (self.checks is not None and self.checks.refused):
            self.notify("not yet: " + self._status().plain, severity="warning", markup=False)
            return
        if self.draft.on == "slurm" and self.checks is None:
            self.notify("Slurm has not answered; r asks it again", severity="warning", markup=False)
            return
        self.busy, self.error = "starting", ""
        source, draft = self.molt.source, self.draft
        self.molt.background.act(self, "launch", lambda: source.launch(draft), self.molt)
        self.fill()

    def action_back(self) -> None:
        if self.busy == "starting":
            self.notify("wait for the answer: nothing is submitted twice meanwhile", markup=False)
        else:
            self.molt.go_back()


def _when(t: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(t)) if t else ""
