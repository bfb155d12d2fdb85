"""Where the tokens of a rollout stand on lines of a given width. Pure; text is clean already.

A token keeps its own cells: it is never mixed with its neighbour's, and a long one goes on in the next line. Labels stand in
front of the first token of a policy version; a segment begins with a line of its own.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, field

from rich.cells import cell_len, chop_cells

from molt_tui.tokens import Rollout

LABEL, RULE = -1, -2
NEWLINE = "\\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some cells of a line: a part of token `index`, or a label (LABEL, RULE)."""

    text: str
    index: int
    width: int


@dataclass
class Layout:
    """Lines of pieces; `first` is the first token at or after the start of each line, for finding a token's line."""

    lines: list[list[Piece]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)

    def line_of(self, index: int) -> int:
        """The line in which a token begins."""
        found = max(0, bisect_right(self.first, index) - 1)
        while found > 0 and index in self.tokens_of(found - 1):
            found -= 1
        return found

    def tokens_of(self, line: int) -> list[int]:
        return [p.index for p in self.lines[line] if p.index >= 0] if 0 <= line < len(self.lines) else []

    def column_of(self, line: int, index: int) -> int:
        """First cell of a token in a line."""
        x = 0
        for piece in self.lines[line]:
            if piece.index == index:
                break
            x += piece.width
        return x

    def token_at(self, line: int, column: int) -> int | None:
        """The token at a cell, or the nearest one before it."""
        found, x = None, 0
        for piece in self.lines[line] if 0 <= line < len(self.lines) else ():
            if piece.index >= 0:
                found = piece.index if x <= column or found is None else found
            x += piece.width
        return found


class _Writer:
    """Fills lines from left to right."""

    def __init__(self, width: int) -> None:
        self.width, self.layout = width, Layout()
        self.line: list[Piece] = []
        self.used = 0
        self.next = 0

    def put(self, text: str, index: int, width: int) -> None:
        if self.used + width > self.width and self.line:
            self.end()
        if width > self.width:
            for part in chop_cells(text, self.width):
                self.put(part, index, cell_len(part))
            return
        self.line.append(Piece(text, index, width))
        self.used += width

    def end(self) -> None:
        self.layout.lines.append(self.line)
        self.layout.first.append(next((p.index for p in self.line if p.index >= 0), self.next))
        self.line, self.used = [], 0


def lay_out(rollout: Rollout, width: int) -> Layout:
    """All tokens of a rollout on lines of `width` cells. An empty token takes one cell."""
    writer = _Writer(max(4, width))
    borders = rollout.borders
    for i, text in enumerate(rollout.pieces):
        writer.next = i
        shown = text or "␀"
        cells = len(shown) if shown.isascii() else cell_len(shown)
        if cells == 0 or (not shown.isascii() and unicodedata.category(shown[0])[0] == "M"):
            shown, cells = "◌" + shown, 1 + cells  # a combining mark needs a cell of this token to stand on
        border = borders.get(i)
        if border is not None:
            _border(writer, border, cells)
        writer.put(shown, i, cells)
        if shown.endswith(NEWLINE):
            writer.end()
    if writer.line:
        writer.end()
    return writer.layout


def _border(writer: _Writer, words: str, following: int) -> None:
    """A line for a new segment, a label for a new version; `following` cells must fit behind the label."""
    segment, _, version = words.rpartition(" v") if words.startswith("segment") and " v" in words else ("", "", words)
    if words.startswith("segment"):
        if writer.line:
            writer.end()
        rule = f"── {segment or words} "
        writer.put(rule.ljust(writer.width, "─")[: writer.width], RULE, writer.width)
        writer.end()
        version = f"v{version}" if segment else ""
    if version:
        width = len(version) + 2
        if writer.line and writer.used + width + following > writer.width:
            writer.end()
        writer.put(f"⟨{version}⟩", LABEL, width)
