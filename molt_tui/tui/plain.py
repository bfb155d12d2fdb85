"""ASCII mode: whatever the screens draw is translated, cell by cell, just before it is sent to the terminal."""

from __future__ import annotations

import codecs
import locale
import os
from collections.abc import Mapping
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

BRAILLE = range(0x2800, 0x2900)
BY_DOTS = " .:;!|%#@"
PLAIN = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)), **dict(zip("▏▎▍▌▋▊▉", "||:=+*%", strict=True)),
    "░": ".", "▒": ":", "▓": "%", "▚": "/", "▞": "\\",
    **dict.fromkeys("─╌┄▔‾", "-"), **dict.fromkeys("━═▬", "="), **dict.fromkeys("│┃║▕", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝╸╺╹╻", "+"), "…": "~", "·": ".", "•": "*", "–": "-", "—": "-",
    "←": "<", "→": ">", "↑": "^", "↓": "v", "◀": "<", "▶": ">", "▼": "v", "▽": "v", "▲": "!", "△": "^", "●": "*", "○": "o",
    "◌": "o", "◔": "o", "◑": "o", "◷": "@", "‖": "=", "✔": "+", "✓": "+", "✖": "x", "✗": "x", "×": "x", "■": "#", "□": "-",
    "↯": "!", "≤": "<", "≥": ">", "≈": "~", "µ": "u", "σ": "s", "Δ": "d", "⚠": "!", "▪": "*", "◆": "*", "◇": "o", "⏎": "<",
    "␀": "0", "▎": "|", "⟨": "<", "⟩": ">", "↵": "$", "▸": ">", "▾": "v", "🔎": "/ ",
}  # fmt: skip


# Keys that Textual names by a sign, as keyboards and manuals name them; short, since a footer has 80 cells.
KEYS = {"⏎": "RET", "↑": "up", "↓": "down", "←": "left", "→": "right"}


def key_words(shown: str) -> str:
    """What a footer calls a key."""
    return KEYS.get(shown, shown)


@lru_cache(4096)
def plain(text: str) -> str:
    """The text in ASCII with exactly as many cells; what has no likeness becomes `?`."""
    if text.isascii():
        return text
    return "".join(_plain(character) for character in text.replace(" → ", "-> ").replace("± ", "+-"))


def _plain(character: str) -> str:
    if character.isascii():
        return character
    if ord(character) in BRAILLE:
        return BY_DOTS[(ord(character) - BRAILLE.start).bit_count()]
    return PLAIN.get(character) or "?" * cell_len(character)


class AsciiOnly(LineFilter):
    """Textual's hook for what becomes of every line before it is written."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(plain(text), style, control) for text, style, control in segments]


def wants_ascii(environment: Mapping[str, str] = os.environ, encoding: str = "utf-8") -> bool:
    """Whether this terminal is known not to show more: the Linux console, a locale that names another character set, or an
    `encoding` that cannot write it."""
    name = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    charset = name.partition("@")[0].partition(".")[2]
    other = bool(charset) and locale.normalize(name).upper().partition(".")[2].replace("-", "") != "UTF8"
    return environment.get("TERM") == "linux" or other or codecs.lookup(encoding).name != "utf-8"
