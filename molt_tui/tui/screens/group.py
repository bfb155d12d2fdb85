"""The recorded rollouts of one group side by side, best reward first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tokens import Place, Rollout
from molt_tui.tui import format
from molt_tui.tui.data_source import info_words, one_line
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.token_view import TokenView

MAX_COLUMNS, COLUMN_WIDTH = 6, 38


def rank(rollout: Rollout) -> float:
    """For sorting by reward; a missing one and NaN come last."""
    reward = rollout.reward
    return float("inf") if reward is None or reward != reward else -reward


def head_of(rollout: Rollout, width: int) -> Content:
    """Reward on top, then what became of the tokens."""
    masked = f", {rollout.masked} masked" if rollout.masked else ""
    cut = ", cut off" if rollout.truncated else ""
    lines = [
        Content.assemble(("reward ", "$quiet"), (format.number(rollout.reward), "bold"), ("  advantage ", "$quiet"),
                         (format.advantage(rollout.advantage), "bold")),
        Content.assemble((f"{rollout.sampled} tokens{cut}", ""), (masked, "$text-warning"),
                         ("  " + info_words(rollout.info), "$quiet")),
        Content.styled(clean(rollout.rollout_id), "$quiet"),
    ]  # fmt: skip
    return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)


class GroupColumn(Vertical):
    """One rollout of the group."""

    def compose(self) -> ComposeResult:
        yield Static("", classes="head", markup=False)
        yield TokenView()

    def show(self, rollout: Rollout, width: int) -> None:
        update(self.query_one(".head", Static), head_of(rollout, width))
        view = self.query_one(TokenView)
        if view.rollout is not rollout:
            view.show(rollout)


class GroupScreen(MoltScreen):
    TITLE = "Group"
    PART = True
    HELP = (
        "The recorded rollouts of one prompt, best reward first. Arrows move over tokens, tab to the next rollout, [ and ]"
        " bring those that do not fit, enter opens one token by token."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "Other", show=False, id="group.next"),
        Binding("shift+tab", "app.focus_previous", "Rollout before", show=False, id="group.previous"),
        Binding("left_square_bracket", "shift(-1)", "Better ones", show=False, id="group.better"),
        Binding("right_square_bracket", "shift(1)", "Worse", id="group.worse"),
        Binding("enter", "open", "Tokens", id="group.open"),
        Binding("escape,backspace", "back", "Back", id="group.back"),
    ]

    def __init__(self, run_id: str, place: Place) -> None:
        super().__init__()
        self.run_id, self.place = run_id, place
        self.rollouts: list[Rollout] = []
        self.start = 0
        self.problem: str | None = None
        self.loaded = False

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield Static("", id="why", markup=False)
        with Horizontal(id="columns"):
            for _ in range(MAX_COLUMNS):
                yield GroupColumn()
        yield KeyFooter()

    def on_resize(self) -> None:
        self._show()

    @property
    def room(self) -> int:
        return max(1, min(MAX_COLUMNS, self.app.size.width // COLUMN_WIDTH, len(self.rollouts)))

    def look(self) -> None:
        if not self.loaded:
            source, run, place = self.molt.source, self.run_id, self.place
            self.ask("group", lambda: source.group(run, place))

    def answered(self, topic: str, value: Sequence[Rollout]) -> None:
        self.loaded = True
        self.rollouts = sorted(value, key=rank)
        mine = next((i for i, r in enumerate(self.rollouts) if r.rollout_id == self.place.rollout_id), 0)
        self.start = max(0, mine - self.room + 1)
        self._show()
        list(self.query(TokenView))[min(mine - self.start, MAX_COLUMNS - 1)].focus()

    def failed(self, topic: str, error: str) -> None:
        self.loaded, self.problem = True, error
        self._show()

    def _show(self) -> None:
        room = self.room
        self.start = max(0, min(self.start, len(self.rollouts) - room))
        shown = self.rollouts[self.start : self.start + room]
        for i, column in enumerate(self.query(GroupColumn)):
            column.display = i < len(shown)
            if i < len(shown):
                column.show(shown[i], self.app.size.width // room - 3)
        update(self.query_one("#top", Static), self._title(len(shown)))
        update(self.query_one("#why", Static), self._prompt())

    def _title(self, shown: int) -> Content:
        group = clean(self.rollouts[0].group_id) if self.rollouts else ""
        where = f"  step {self.place.step}  rollouts {self.start + 1} to {self.start + shown} of {len(self.rollouts)} recorded"
        return Content.assemble((" Group ", "bold reverse"), " ", (group, "bold"), (where if self.rollouts else "", "$quiet"))

    def _prompt(self) -> Content:
        if not self.rollouts:
            return Content.styled(self.problem or "reading ...", "bold $text-error" if self.problem else "$quiet")
        first = self.rollouts[0]
        rewards = ", ".join(format.number(r.reward) for r in self.rollouts)
        parts = [("rewards ", "$quiet"), (rewards, "")]
        if first.label is not None:
            parts += [("   expected ", "$quiet"), (one_line(first.label), "bold")]
        return Content.assemble(*parts).truncate(self.app.size.width - 2, ellipsis=True)

    def action_shift(self, by: int) -> None:
        self.start += by
        self._show()

    def action_open(self) -> None:
        column = self.focused.parent if isinstance(self.focused, TokenView) else None
        shown = list(self.query(GroupColumn))
        index = self.start + shown.index(column) if isinstance(column, GroupColumn) else self.start
        places = [Place(r.attempt, r.step, r.rollout_id) for r in self.rollouts]
        if places:
            self.molt.open_tokens(self.run_id, places[min(index, len(places) - 1)], places)

    @on(TokenView.Moved)
    def _moved(self, event: TokenView.Moved) -> None:
        event.stop()

    def action_back(self) -> None:
        self.molt.go_back()
