"""Text from a run is data: everything a terminal would interpret is shown as a visible escape."""

from __future__ import annotations

import re

_CONTROL = r"\x00-\x1f\x7f-\x9f"  # C0, DEL, C1; ESC and CSI are among them
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Variation selectors and fillers have no cells of their own but change what terminals make of their neighbours.
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_INVISIBLE = "\u00ad\u180e\u200b-\u200d\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[{_CONTROL}{_BIDI}{_INVISIBLE}{_FILLERS}\ud800-\udfff]")
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: object, *, lines: bool = False) -> str:
    """`text` with control characters, escape sequences, bidi controls, invisible characters and lone surrogates written
    as visible escapes; `lines` keeps line feeds, and turns tabs into four spaces."""
    value = text if isinstance(text, str) else str(text)
    if value.isascii() and value.isprintable():
        return value
    if lines:
        return _UNSAFE_IN_LINES.sub(_escape, value.replace("\r\n", "\n").replace("\t", "    "))
    return _UNSAFE.sub(_escape, value)


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def log_line(text: str) -> str:
    """One line of a log for reading: colours dropped, of a progress bar only its last state, everything else cleaned."""
    return clean(_COLOUR.sub("", text).rstrip("\r\n").rpartition("\r")[2])


def shorten(text: object, width: int) -> str:
    """`clean(text)` in at most `width` characters, with an ellipsis where it was cut."""
    value = clean(text)
    return value if len(value) <= width else value[: max(width - 1, 0)] + "…"


def width_of(text: str) -> int:
    """Terminal columns of a cleaned text; East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)
