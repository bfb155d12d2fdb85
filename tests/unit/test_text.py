import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.cli import output
from molt_tui.text import clean, shorten, width_of

ANYTHING = st.text(st.characters(), max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\e[2J"), ("a\r\nb\tc", "a\\r\\nb\\tc"), ("\x9b31m", "\\x9b31m"), ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"), ("é 7-3=4 漢字", "é 7-3=4 漢字"), ("[bold]", "[bold]"), ("\U000e0041", "\\U000e0041"),
    ],
)  # fmt: skip
def test_clean(text, shown):
    assert clean(text) == shown


def test_clean_keeps_lines_when_asked():
    assert clean("a\r\nb\n\tc\rd", lines=True) == "a\nb\n    c\\rd"
    assert clean(3.5) == "3.5" and shorten("abcdef", 4) == "abc…" and shorten("abcd", 4) == "abcd"
    assert (width_of("abc"), width_of("漢字"), width_of("e\u0301")) == (3, 4, 1)


@given(ANYTHING, st.booleans())
def test_nothing_a_terminal_would_interpret_is_left(text, lines):
    cleaned = clean(text, lines=lines)
    assert clean(cleaned, lines=lines) == cleaned
    cleaned.encode()
    for character in cleaned.replace("\n", "") if lines else cleaned:
        assert unicodedata.category(character) not in ("Cc", "Cs") and unicodedata.bidirectional(character) not in (
            "RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")  # fmt: skip


@given(st.lists(st.lists(ANYTHING | st.floats() | st.none() | st.integers(), min_size=2, max_size=2), max_size=4))
def test_tables_and_json_of_anything(rows):
    written = printed(output.table, ("A", "B"), rows, right=("B",))
    assert all(c == "\n" or c.isprintable() or unicodedata.category(c) in ("Zs", "Cn", "Co", "Cf") for c in written)
    assert written.count("\n") == len(rows) + 1
    values = [*(clean(v) for row in rows for v in row), ANY_BYTES]
    document = printed(output.emit_json, values)
    assert json.loads(document) == values and document.isascii() and all(c == "\n" or c.isprintable() for c in document)


def printed(function, *arguments, **options) -> str:
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        function(*arguments, **options)
        return sys.stdout.getvalue()
    finally:
        sys.stdout = stdout


ANY_BYTES = bytes(range(256)).decode("utf-8", "surrogateescape")
