"""The tokens of one rollout: colour is the ratio trainer/sampler, struck is masked, dim is what was not sampled.

Only the visible lines are drawn. With `marks`, a line below each line of text says the same in characters, for terminals
without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from molt_tui.tokens import NOT_TRAINED, SAMPLED, Rollout
from molt_tui.tui.token_layout import LABEL, Layout, Piece, lay_out

# |log ratio| from which a shade begins: 5 %, 20 %, a factor of 2, a factor of 5.
SHADES = (0.05, 0.18, 0.69, 1.61)
HIGH_RATIO = SHADES[2]
ABOVE = ("", "on $primary 18%", "on $primary 36%", "on $primary 60%", "bold $background on $primary")
BELOW = ("", "on $warning 18%", "on $warning 36%", "on $warning 60%", "bold $background on $warning")
MARKS_ABOVE, MARKS_BELOW = " ·+^^", " ·-vv"
NOT_FINITE = "bold $text-error"


def shade(gap: float | None) -> int:
    """0 to 4: how far a log-ratio is from 0."""
    return 0 if gap is None else sum(abs(gap) >= edge for edge in SHADES)


def style_of(rollout: Rollout, index: int) -> str:
    """How a token looks."""
    state = rollout.states[index]
    if state not in SAMPLED:
        return "$quiet"
    gap = rollout.gap(index)
    if gap is None and rollout.train_logprobs[index] is not None:
        look = NOT_FINITE
    else:
        look = (ABOVE if (gap or 0) > 0 else BELOW)[shade(gap)]
        look = f"{look} underline" if shade(gap) >= 3 else look
    return f"{look} strike" if state in NOT_TRAINED else look


def marks_of(rollout: Rollout, index: int, width: int) -> str:
    """The same in characters, exactly `width` cells: x masked, ^ v ratio above 2 or below 1/2, + - above 1.2 or below 1/1.2,
    ! another expert, : not sampled."""
    state = rollout.states[index]
    if state not in SAMPLED:
        return ":" * width
    gap = rollout.gap(index)
    mark = "x" if state in NOT_TRAINED else (MARKS_ABOVE if (gap or 0) > 0 else MARKS_BELOW)[shade(gap)]
    found = mark * width if mark in "xv^" else mark + " " * (width - 1)
    return found[:-1] + "!" if rollout.layers[index] and (width > 1 or found == " ") else found


class TokenView(ScrollView, can_focus=True):
    """Posts `Moved` when the cursor comes to another token."""

    ALLOW_MAXIMIZE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "step(1)", "Next token", show=False, id="tokens.right"),
        Binding("left,h", "step(-1)", "Token before", show=False, id="tokens.left"),
        Binding("down,j", "line(1)", "Down", show=False, id="tokens.down"),
        Binding("up,k", "line(-1)", "Up", show=False, id="tokens.up"),
        Binding("pagedown,ctrl+d,space", "page(1)", "Page down", show=False, id="tokens.page_down"),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False, id="tokens.page_up"),
        Binding("home,g", "edge(0)", "First token", show=False, id="tokens.first"),
        Binding("end,G", "edge(-1)", "Last token", show=False, id="tokens.last"),
        Binding("n", "jump('masked', 1)", "Masked", id="tokens.masked"),
        Binding("N", "jump('masked', -1)", "Masked before", show=False, id="tokens.masked_before"),
        Binding("b", "jump('border', 1)", "Border", id="tokens.border"),
        Binding("B", "jump('border', -1)", "Border before", show=False, id="tokens.border_before"),
        Binding("e", "jump('ratio', 1)", "Far ratio", id="tokens.ratio"),
        Binding("E", "jump('ratio', -1)", "Far ratio before", show=False, id="tokens.ratio_before"),
        Binding("w", "jump('experts', 1)", "Next other expert", show=False, id="tokens.experts"),
        Binding("W", "jump('experts', -1)", "Other expert before", show=False, id="tokens.experts_before"),
        Binding("m", "marks", "Marks", id="tokens.marks"),
    ]

    @dataclass
    class Moved(Message):
        view: TokenView
        index: int

        @property
        def control(self) -> TokenView:
            return self.view

    class Marked(Message):
        """The line of marks was shown or hidden."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rollout: Rollout | None = None
        self.laid_out = Layout()
        self.cursor = 0
        self.marks: bool | None = None
        self._width = 0

    @property
    def marked(self) -> bool:
        """Whether the line of marks is shown: as chosen, else only where there is no colour."""
        return self.app.native_ansi_color or self.app.theme == "molt-mono" if self.marks is None else self.marks

    @property
    def _lines_each(self) -> int:
        return 2 if self.marked else 1

    def show(self, rollout: Rollout) -> None:
        """Another rollout; the cursor goes to its first sampled token."""
        self.rollout = rollout
        self.cursor = next((i for i, s in enumerate(rollout.states) if s in SAMPLED), 0)
        self._width = 0
        self._arrange()
        self.scroll_to(y=max(0, self.laid_out.line_of(self.cursor) - 2) * self._lines_each, animate=False)
        self.post_message(self.Moved(self, self.cursor))

    def _arrange(self) -> None:
        width = max(4, self.size.width - 1)
        if self.rollout is not None and width != self._width:
            self._width = width
            self.laid_out = lay_out(self.rollout, width)
        self.virtual_size = Size(self.size.width, len(self.laid_out.lines) * self._lines_each)
        self._reveal()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def _reveal(self) -> None:
        """Scroll so that the cursor's line is visible."""
        each, page = self._lines_each, max(1, self.size.height)
        y, top = self.laid_out.line_of(self.cursor) * each, self.scroll_offset.y
        if y < top:
            self.scroll_to(y=max(0, y - each), animate=False)
        elif y + each > top + page:
            self.scroll_to(y=y + 2 * each - page, animate=False)

    def move_to(self, index: int) -> None:
        count = len(self.rollout) if self.rollout is not None else 0
        index = min(max(index, 0), count - 1)
        if count and index != self.cursor:
            before, self.cursor = self.cursor, index
            self._refresh_token(before)
            self._refresh_token(index)
            self._reveal()
            self.post_message(self.Moved(self, index))

    def _refresh_token(self, index: int) -> None:
        each = self._lines_each
        line = self.laid_out.line_of(index)
        y = line * each - self.scroll_offset.y
        rows = 1
        while index in self.laid_out.tokens_of(line + rows):
            rows += 1
        self.refresh(Region(0, y, self.size.width, rows * each))

    def action_step(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_line(self, by: int) -> None:
        """To the token above or below; lines without tokens are passed over."""
        layout = self.laid_out
        line = layout.line_of(self.cursor)
        column = layout.column_of(line, self.cursor) if layout.lines else 0
        target = line + by
        while 0 <= target < len(layout.lines):
            found = layout.token_at(target, column)
            if found is not None and (found - self.cursor) * by > 0:
                self.move_to(found)
                return
            target += 1 if by > 0 else -1

    def action_page(self, by: int) -> None:
        lines = max(1, self.size.height // self._lines_each - 1)
        last = len(self.laid_out.lines) - 1
        line = self.laid_out.line_of(self.cursor)
        target = min(max(line + by * lines, 0), last)
        while 0 <= target <= last and not self.laid_out.tokens_of(target):
            target += by
        tokens = self.laid_out.tokens_of(target)
        if tokens:
            self.move_to(tokens[0])

    def action_edge(self, index: int) -> None:
        self.move_to(index if index >= 0 else 1 << 62)

    def action_jump(self, what: str, by: int) -> None:
        """To the next token of a kind; says so when there is none."""
        rollout = self.rollout
        if rollout is None:
            return
        wanted: dict[str, Callable[[int], bool]] = {
            "masked": lambda i: rollout.states[i] in NOT_TRAINED,
            "border": lambda i: i in rollout.borders,
            "ratio": lambda i: rollout.states[i] in SAMPLED and abs(rollout.gap(i) or 0.0) >= HIGH_RATIO,
            "experts": lambda i: bool(rollout.layers[i]),
        }
        places: Iterable[int] = range(self.cursor + 1, len(rollout)) if by > 0 else range(self.cursor - 1, -1, -1)
        found = next((i for i in places if wanted[what](i)), None)
        if found is None:
            names = {"masked": "masked token", "border": "border", "ratio": "token with a ratio beyond 2 or 1/2",
                     "experts": "token with another expert"}  # fmt: skip
            self.notify(f"no {names[what]} {'after' if by > 0 else 'before'} this one", timeout=2)
        else:
            self.move_to(found)

    def action_marks(self) -> None:
        self.marks = not self.marked
        self._arrange()
        self.post_message(self.Marked())

    def on_click(self, event: events.Click) -> None:
        found = self.laid_out.token_at((event.y + self.scroll_offset.y) // self._lines_each, event.x)
        if found is not None:
            self.move_to(found)

    def render_line(self, y: int) -> Strip:
        width, each = self.size.width, self._lines_each
        line, part = divmod(y + self.scroll_offset.y, each)
        if self.rollout is None or not 0 <= line < len(self.laid_out.lines):
            return Strip.blank(width, self.rich_style)
        pieces = self.laid_out.lines[line]
        content = self._marks(pieces) if part else self._text(pieces)
        if not content.plain:
            return Strip.blank(width, self.rich_style)
        return Visual.to_strips(self, content, width, 1, self.visual_style, pad=True)[0]

    def _text(self, pieces: list[Piece]) -> Content:
        assert self.rollout is not None
        parts: list[tuple[str, str]] = []
        for piece in pieces:
            if piece.index < 0:
                parts.append((piece.text, "bold $text-accent" if piece.index == LABEL else "$text-accent"))
            elif piece.index == self.cursor:
                strike = " strike" if self.rollout.states[piece.index] in NOT_TRAINED else ""
                parts.append((piece.text, f"bold reverse{strike}"))
            else:
                parts.append((piece.text, style_of(self.rollout, piece.index)))
        return Content.assemble(*parts)

    def _marks(self, pieces: list[Piece]) -> Content:
        assert self.rollout is not None
        parts = []
        for piece in pieces:
            if piece.index < 0:
                parts.append(("|" + " " * (piece.width - 1) if piece.index == LABEL else " " * piece.width, "$text-accent"))
            else:
                parts.append((marks_of(self.rollout, piece.index, piece.width), "$quiet"))
        return Content.assemble(*parts)
