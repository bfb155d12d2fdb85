"""Whatever a model, a tool or a metric wrote: no screen fails, none sends a control sequence, every line keeps its columns."""

from __future__ import annotations

import io
import random
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual import events

from molt_tui.services import tables, traces
from molt_tui.store.query import QueryResult
from molt_tui.tokens import parse
from molt_tui.tui.completion import complete
from molt_tui.tui.data_source import TokenPage, Vocabulary
from molt_tui.tui.screens.group import head_of
from molt_tui.tui.screens.query import cell
from molt_tui.tui.screens.tokens import about, token_lines
from molt_tui.tui.screens.traces import cells
from molt_tui.tui.store_data import trace_line
from molt_tui.tui.token_layout import lay_out
from molt_tui.tui.widgets.sql_editor import SqlEditor
from molt_tui.tui.widgets.token_view import marks_of, style_of
from tests.traced_run import CONFIG_FLAT, records, rollout, segment
from tests.tui.fake_source import RUNS

NASTY = [
    "\x1b[2J", "\x1b]52;c;aGk=\x07", "\x9b31m", "\x00", "\r", "\t", "\u202eevil", "\u2066", "\u200b", "\u200d", "\ufe0f",
    "\u00ad", "漢字", "e\u0301", "\u0301", "👩\u200d👩\u200d👧", "[red]x[/]", "[/]", "\ud800", "\U000e0041", "\u2028", "\x7f", "",
    "ﷺ", "ก็", "\n\n", "x" * 300,
]  # fmt: skip
BIDI = {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}
NUMBERS = ["nan", "inf", "-inf", 1e308, -1e308, 0.0, 5e-324, None, "x", [], True, 10**400]
texts = st.sampled_from(NASTY) | st.text(max_size=12) | st.binary(max_size=12).map(lambda b: b.decode("utf-8", "surrogateescape"))
numbers = st.sampled_from(NUMBERS) | st.floats() | st.integers()


def harmless(text: str) -> bool:
    """Nothing in it that a terminal would interpret or that would hide."""
    return all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and unicodedata.bidirectional(c) not in BIDI for c in text)


@st.composite
def hostile(draw):
    """A record with hostile text and numbers in every place where a run writes them."""
    pieces = draw(st.lists(texts, min_size=1, max_size=12))
    count = len(pieces)

    def per_token(values):
        return draw(st.lists(values, min_size=0, max_size=count))

    part = {"token_ids": list(range(count)), "pieces": pieces, "mask": per_token(st.sampled_from([0, 1])),
            "logprobs": per_token(numbers), "train_logprobs": per_token(numbers), "versions": per_token(numbers),
            "kept": per_token(numbers), "routing_mismatch": per_token(st.lists(st.integers(-5, 300), max_size=3))}  # fmt: skip
    names = ("rollout_id", "prompt_id", "group_id", "label")
    wild = {name: draw(texts) for name in names} | {name: draw(numbers) for name in ("reward", "score", "advantage", "version")}
    return {"run": "r", "attempt": 1, "step": 3, "segments": [part, part], "info": {draw(texts): draw(numbers | texts)}, **wild}


@settings(deadline=None)
@given(hostile(), st.integers(4, 90))
def test_everything_that_is_drawn_is_harmless_and_keeps_its_columns(record, width):
    found = parse(record, CONFIG_FLAT)
    page = TokenPage(found, [found.reward, None], 4)
    drawn = [line.plain for line in (*about(page), head_of(found, width))]
    for i in range(len(found)):
        drawn += [line.plain for line in token_lines(page, i, width)]
        style_of(found, i)
    layout = lay_out(found, width)
    for line in layout.lines:
        assert sum(piece.width for piece in line) <= max(4, width)
        for piece in line:
            assert cell_len(piece.text) == piece.width
            assert piece.index < 0 or len(marks_of(found, piece.index, piece.width)) == piece.width
            drawn.append(piece.text)
    assert sorted({p.index for line in layout.lines for p in line if p.index >= 0}) == list(range(len(found)))
    assert all(
        layout.line_of(i) == min(n for n, _ in enumerate(layout.lines) if i in layout.tokens_of(n)) for i in range(len(found))
    )
    for row in traces.summaries([record]):
        drawn += [text for wide in (False, True) for text, _ in cells(trace_line(row), wide)]
    assert all(harmless(part) for text in drawn for part in text.split("\n"))


values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts | st.binary(max_size=9)


@settings(deadline=None)
@given(st.lists(st.tuples(values, values), max_size=4))
def test_results_of_queries_in_every_format(rows):
    assert all(harmless(cell(v)[0]) for row in rows for v in row)
    for style in ("csv", "json", "jsonl", "markdown"):
        out = io.StringIO()
        tables.WRITERS[style](["a\x1b", "b|"], rows, out, safe=True)
        assert harmless(out.getvalue().replace("\n", "")), style
        if style != "csv":
            out.getvalue().encode("ascii" if style.startswith("json") else "utf-8")


def nasty_records(step: int) -> list[dict]:
    dice = random.Random(step)
    made = []
    for index in range(6):
        pieces = [dice.choice(NASTY) for _ in range(60)]
        part = segment([(pieces[:20], None), (pieces[20:], step - 1)], {i: dice.choice([0.1, -9, 40]) for i in range(20, 60)})
        part["logprobs"] = [dice.choice(NUMBERS) for _ in pieces]
        made.append(rollout(step, 1, index, dice.choice(["nan", 1e308, "inf", 0.5]), [part], label="".join(pieces[:8]),
                            info={pieces[3]: pieces[4], "n": 1e308}, prompt_id=dice.choice(NASTY)))  # fmt: skip
    return made


def assert_harmless(driver, size) -> None:
    strips = driver.app.screen._compositor.render_strips()
    assert len(strips) == size[1]
    for strip in strips:
        assert harmless(strip.text), repr(strip.text)
        assert cell_len(strip.text) == size[0]


async def test_the_real_screens_show_all_of_it(open_app):
    for size in ((80, 24), (131, 40)):
        async with open_app(run=RUNS[0].id, size=size) as driver:
            driver.source.records = {step: nasty_records(step) for step in (8, 12)}
            for keys in (["t"], ["j", "j"], ["enter"], ["n", "e", "b"], ["m"], ["pagedown", "G", "k", "k"], ["y"], ["v"],
                         ["tab", "j"], ["escape", "escape", "a"], ["slash", "x", "enter"], ["y"]):  # fmt: skip
                await driver.press(*keys)
                assert_harmless(driver, size)
            assert all(harmless(notice.replace("\n", "")) for notice in driver.notices())


async def test_a_hostile_result_on_the_query_screen(open_app):
    async with open_app() as driver:
        rows = [(text, "\x1b[31m" + text, 1e308, float("inf"), b"\x1b[0m") for text in NASTY]
        driver.source.result = QueryResult(["\x1b[2J", "b\u202e", "c", "d", "e"], rows, "", 0.1)
        await driver.press("Q", "ctrl+r")
        await driver.wait_for("rows,")
        for keys in (["j"], ["l"], ["l", "l"], ["G"], ["y"], ["h"]):
            await driver.press(*keys)
            assert_harmless(driver, (80, 24))


def test_good_records_stay_readable():
    found = parse(records(12)[0], CONFIG_FLAT)
    text = "".join(piece.text for line in lay_out(found, 78).lines for piece in line)
    assert "The answer is **391**." in text and "⟨v10⟩" in text


async def test_a_hostile_saved_query_in_the_editor(open_app):
    async with open_app() as driver:
        await driver.press("Q")
        driver.app.screen.query_one(SqlEditor).text = "\n".join(NASTY)
        await driver.settle()
        assert_harmless(driver, (80, 24))


@given(texts, st.lists(texts))
def test_completion_of_anything(before, words):
    start, found = complete(before, Vocabulary(tuple(words), tuple(words)))
    assert 0 <= start <= len(before) and all(before[start:].lower() in word.lower() for word in found)


async def test_pasting_anything_into_a_field(open_app):
    async with open_app() as driver:
        for keys in (["slash"], ["escape", "Q"]):
            await driver.press(*keys)
            driver.app.post_message(events.Paste("\x1b]0;x\x07 \x9b2J\u202e"))
            await driver.settle()
            assert "\\e]0;x" in driver.text()
            assert_harmless(driver, (80, 24))
