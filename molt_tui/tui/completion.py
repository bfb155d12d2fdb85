"""Completing SQL: tables, columns and keywords anywhere, names of metrics and runs inside quotes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from molt_tui.tui.data_source import Vocabulary

_WORD = re.compile(r"\w+$")
MOST = 50


def complete(before: str, vocabulary: Vocabulary) -> tuple[int, list[str]]:
    """Where the word before the cursor begins in `before`, and what it can become, best first; none for no word."""
    quote = _open_quote(before)
    if quote is not None:
        return quote, _matches(before[quote:], vocabulary.quoted)
    word = _WORD.search(before)
    if word is None:
        return len(before), []
    return word.start(), _matches(word.group(), vocabulary.words)


def _open_quote(text: str) -> int | None:
    """Index after the quote of a string that is not closed yet; comments are passed over."""
    start, i = None, 0
    while i < len(text):
        if start is not None:
            start = None if text[i] == "'" else start
        elif text[i] == "'":
            start = i + 1
        elif text.startswith("--", i):
            i = text.find("\n", i)
            if i < 0:
                return None
        i += 1
    return start


def _matches(typed: str, words: Iterable[str]) -> list[str]:
    """Words that begin with what was typed, then those that contain it; a word that is there already is none."""
    low = typed.lower()
    found = [w for w in dict.fromkeys(words) if low in w.lower() and w != typed]
    found.sort(key=lambda w: not w.lower().startswith(low))
    return found[:MOST]
