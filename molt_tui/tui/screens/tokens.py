"""One rollout token by token: why it got its reward above, its text, and what is known of the token under the cursor below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tokens import FEEDBACK, NOT_TRAINED, PROMPT, SAMPLED, TRAINED, Place, Rollout
from molt_tui.tui import clipboard, format
from molt_tui.tui.data_source import TokenPage, info_words, one_line
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.runs import update
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.token_view import ABOVE, BELOW, TokenView

Parts = list[tuple[str, str]]


def about(page: TokenPage) -> list[Content]:
    """Three lines: the reward and what was expected, the group and the policy, and what became of the tokens."""
    rollout = page.rollout
    return [_reward(rollout), _group(page), _fate(rollout)]


def _reward(rollout: Rollout) -> Content:
    parts: Parts = [("reward ", "$quiet"), (format.number(rollout.reward), "bold")]
    if rollout.score is not None and rollout.score != rollout.reward:
        parts += [(" score ", "$quiet"), (format.number(rollout.score), "")]
    if rollout.label is not None:
        parts += [("  expected ", "$quiet"), (one_line(rollout.label), "bold")]
    parts += [("  advantage ", "$quiet"), (format.advantage(rollout.advantage), "bold")]
    if rollout.advantages is not None:
        parts.append((" (mean; own per token)", "$quiet"))
    return Content.assemble(*parts, ("  " + info_words(rollout.info), "$quiet"))


def _group(page: TokenPage) -> Content:
    """What the others of the group got, and by which policies the rollout was sampled and trained."""
    rollout, words = page.rollout, []
    known = [r for r in page.rewards if r is not None and math.isfinite(r)]
    if len(page.rewards) > 1 and known:
        low, mean, high = (format.number(v) for v in (min(known), sum(known) / len(known), max(known)))
        span = f"all {low}" if low == high else f"{low} to {high}, mean {mean}"
        words.append(f"group of {len(page.rewards)}: {span}")
    gaps = [g for i in range(len(rollout)) if (g := rollout.gap(i)) is not None]
    if gaps:
        words.append(f"ratio {math.exp(min(gaps)):.2g} to {math.exp(max(gaps)):.2g}")
    ages = [a for i in range(len(rollout)) if (a := rollout.staleness(i)) is not None]
    if ages:
        span = str(min(ages)) if min(ages) == max(ages) else f"{min(ages)}-{max(ages)}"
        words.append(f"trained at v{rollout.trained_version}, {span} behind")
    words += ["cut off"] if rollout.truncated else []
    return Content.styled("   ".join(words), "$quiet")


def _fate(rollout: Rollout) -> Content:
    """How many tokens were trained, and why others were not."""
    counts = Counter(rollout.states)
    masked = [f"{counts[state]} {state}" for state in sorted(NOT_TRAINED) if counts[state]]
    parts: Parts = [(f"{rollout.sampled} sampled: {counts[TRAINED]} trained", "")]
    if masked:
        share = format.share(rollout.masked / max(rollout.sampled, 1))
        parts.append((f", {share} masked: {', '.join(masked)}", "$text-warning"))
    rest = [f"{counts[state]} {state}" for state in (PROMPT, FEEDBACK) if counts[state]]
    return Content.assemble(*parts, ("   " + "  ".join(rest), "$quiet"))


def token_lines(page: TokenPage, index: int, width: int) -> list[Content]:
    """Four lines about one token."""
    rollout = page.rollout
    if not len(rollout):
        return [Content("this rollout has no tokens")]
    state = rollout.states[index]
    where = [f"token {index + 1} of {len(rollout)}"]
    where += [f"segment {rollout.segment(index) + 1} of {len(rollout.segment_starts)}"] if len(rollout.segment_starts) > 1 else []
    where += [rollout.borders[index] + " begins"] if index in rollout.borders else []
    identity = "?" if rollout.ids[index] is None else rollout.ids[index]
    head = Content.assemble(("  ".join(where), "$quiet"), "  ", (quoted(rollout.pieces[index]), "bold"), (f"  id {identity}", ""))
    return [head, _probabilities(rollout, index), _reason(rollout, index, state), _experts(page, index, width)]


def quoted(text: str) -> str:
    """Clean text in quotes, so that blanks show."""
    return "'" + text.replace("'", "\\'") + "'"


def _probabilities(rollout: Rollout, index: int) -> Content:
    if rollout.states[index] not in SAMPLED:
        return Content.styled("log-prob  not sampled by the policy", "$quiet")
    ratio = rollout.ratio(index)
    parts: Parts = [("log-prob  sampler ", "$quiet"), (_exact(rollout.logprobs[index]), ""), ("  trainer ", "$quiet"),
                    (_exact(rollout.train_logprobs[index]), ""), ("  ratio ", "$quiet"),
                    ("not reported" if ratio is None else f"{ratio:.4g}", "bold"), ("  advantage ", "$quiet"),
                    (format.advantage(rollout.advantage_of(index)), "")]  # fmt: skip
    return Content.assemble(*parts)


def _exact(value: float | None) -> str:
    return format.ABSENT if value is None else f"{value:.4f}" if abs(value) < 1e5 else format.number(value)


def _reason(rollout: Rollout, index: int, state: str) -> Content:
    style = "bold $text-warning" if state in NOT_TRAINED else "$text-success" if state == TRAINED else "$quiet"
    parts: Parts = [(rollout.reason(index), style)]
    version, age = rollout.versions[index], rollout.staleness(index)
    if version is not None:
        behind = "" if age is None else f", trained at v{rollout.trained_version}: {age} behind"
        parts.append((f"   sampled by v{version}{behind}", ""))
    elif state in SAMPLED:
        parts.append(("   version not reported", "$quiet"))
    return Content.assemble(*parts)


def _experts(page: TokenPage, index: int, width: int) -> Content:
    """The MoE layers in which the trainer's router chose other experts than the sampler's."""
    layers = page.rollout.layers[index]
    if layers is None:
        return Content.styled("experts   not reported (no mixture of experts, or routing replay is off)", "$quiet")
    count = page.layers or 0
    if not layers:
        return Content.assemble(("experts   the same in every layer", "$quiet"), (f" ({count})" if count else "", "$quiet"))
    strip = "".join("█" if n in set(layers) else "·" for n in range(max(count, layers[-1] + 1)))
    words = f"other ones in layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}" + (
        f" of {count}" if count else ""
    )
    parts: Parts = [("experts   ", "$quiet"), (words, "$text-warning")]
    if len(words) + len(strip) + 13 <= width:
        parts.append(("   " + strip, "$text-accent"))
    return Content.assemble(*parts)


def legend(marked: bool) -> Content:
    if marked:
        return Content.styled("x masked  ^ v ratio beyond 2  + - beyond 1.2  ! other experts  : unsampled", "$quiet")
    below = [(f" {word} ", style) for word, style in zip(("1/5", "1/2", ".8"), BELOW[:1:-1])]
    above = [(f" {word} ", style) for word, style in zip(("1.2", "2", "5"), ABOVE[2:])]
    return Content.assemble(("ratio ", "$quiet"), *below, " 1 ", *above, "  ", ("struck", "strike"),
                            (" masked  dim unsampled  ⟨v⟩ version", "$quiet"))  # fmt: skip


class TokenScreen(MoltScreen):
    TITLE = "Tokens"
    PART = True
    HELP = (
        "One rollout token by token. Colour: the ratio of the trainer's probability to the sampler's, blue above 1, amber below."
        " Underlined: beyond a factor of 2. Struck: sampled but masked, so not trained. Dim: prompt and feedback. ⟨v12⟩: policy"
        " version 12 sampled from here on.\n\n"
        "m shows the same as characters below each line. The lines at the bottom are about the token under the cursor."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "other(-1)", "Rollout before", show=False, id="tokens.before"),
        Binding("right_square_bracket", "other(1)", "Next", id="tokens.next"),
        Binding("v", "group", "Group", id="tokens.group"),
        Binding("y", "copy_token", "Copy token", show=False, id="tokens.copy"),
        Binding("Y", "copy_text", "Copy whole text", show=False, id="tokens.copy_text"),
        Binding("escape,backspace", "back", "Back", id="tokens.back"),
    ]

    def __init__(self, run_id: str, place: Place, others: Sequence[Place] = ()) -> None:
        super().__init__()
        self.run_id, self.place = run_id, place
        self.others = tuple(others) or (place,)
        self.page: TokenPage | None = None
        self.loaded: Place | None = None
        self.problem: str | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield Static("", id="why", markup=False)
        yield TokenView(id="tokens")
        yield Static("", id="token", markup=False)
        yield Static("", id="legend", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(TokenView).focus()

    def on_resize(self) -> None:
        self._show()

    def look(self) -> None:
        """A recorded rollout does not change: it is asked for once."""
        if self.loaded != self.place:
            source, run, place = self.molt.source, self.run_id, self.place
            self.ask("rollout", lambda: (place, source.rollout(run, place)))

    def answered(self, topic: str, value: tuple[Place, TokenPage]) -> None:
        place, page = value
        if place == self.place:
            self.loaded, self.page, self.problem = place, page, None
            self.query_one(TokenView).show(page.rollout)
            self._show()

    def failed(self, topic: str, error: str) -> None:
        self.loaded, self.problem = self.place, error
        self._show()

    def _show(self) -> None:
        top, why, page = self.query_one("#top", Static), self.query_one("#why", Static), self.page
        at = f"{self.others.index(self.place) + 1} of {len(self.others)}" if self.place in self.others else ""
        title = Content.assemble((" Tokens ", "bold reverse"), " ", (clean(self.place.rollout_id), "bold"),
                                 (f"  step {self.place.step}  attempt {self.place.attempt}  rollout {at}", "$quiet"))  # fmt: skip
        update(top, title)
        if self.problem is not None or page is None:
            update(why, Content.styled(self.problem or "reading ...", "bold $text-error" if self.problem else "$quiet"))
            return
        width = self.app.size.width - 2
        update(why, Content("\n").join(line.truncate(width, ellipsis=True) for line in about(page)))
        self._show_token()
        update(self.query_one("#legend", Static), legend(self.query_one(TokenView).marked))

    def _show_token(self) -> None:
        if self.page is not None:
            width = self.app.size.width - 2
            lines = token_lines(self.page, self.query_one(TokenView).cursor, width)
            update(self.query_one("#token", Static), Content("\n").join(line.truncate(width, ellipsis=True) for line in lines))

    @on(TokenView.Moved)
    def _moved(self) -> None:
        self._show_token()

    @on(TokenView.Marked)
    def _marked(self) -> None:
        update(self.query_one("#legend", Static), legend(self.query_one(TokenView).marked))

    def action_other(self, by: int) -> None:
        at = self.others.index(self.place) + by
        if not 0 <= at < len(self.others):
            self.notify(f"this is the {'last' if by > 0 else 'first'} rollout of the list", timeout=2)
            return
        self.place = self.others[at]
        self._show()
        self.look()

    def action_group(self) -> None:
        self.molt.open_group(self.run_id, self.place)

    def action_copy_token(self) -> None:
        if self.page is not None and len(self.page.rollout):
            clipboard.copy(self.app, self.page.rollout.pieces[self.query_one(TokenView).cursor], "token")

    def action_copy_text(self) -> None:
        if self.page is not None:
            clipboard.copy(self.app, self.page.rollout.text(), "whole text")

    def action_back(self) -> None:
        self.molt.go_back()
