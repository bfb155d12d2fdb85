"""The pure parts of drawing: numbers, bars, curves, tables."""

import math

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from molt_tui.sentences import sentence
from molt_tui.tui import format, glyphs
from molt_tui.tui.widgets.braille import plot, thin
from molt_tui.tui.widgets.curves import chart
from molt_tui.tui.widgets.key_table import fit

numbers = st.floats(allow_nan=True, allow_infinity=True)
points = st.lists(st.tuples(st.floats(0, 1e6), numbers), max_size=60)


def test_numbers_are_short_and_never_lie():
    cases = {0: "0", 0.53: "0.530", 142: "142", 12.345: "12.3", 0.00013: "1.3e-4", 1234567: "1.2e6", 98765: "98765",
             math.nan: "NaN", math.inf: "+inf", -math.inf: "-inf", -0.0123: "-0.0123"}  # fmt: skip
    assert {v: format.number(v) for v in cases} == cases
    assert format.number(None) == "not reported"


@given(numbers)
def test_every_number_fits_nine_cells(value):
    assert len(format.number(value)) <= 9


def test_shares_keep_not_quite_apart_from_all_and_nothing():
    assert [format.share(v) for v in (0, 0.0004, 0.031, 0.5, 0.998, 0.99999, 1)] == [
        "0 %", "0.04 %", "3.1 %", "50 %", "99.8 %", "99.9 %", "100 %"]  # fmt: skip


def test_ages():
    assert [format.age(v) for v in (0, 59.9, 61, 7300, 200000, None)] == ["0 s", "59 s", "1 m", "2 h", "2 d", "?"]


def test_a_spread_is_one_number_when_all_agree():
    assert format.spread({"a/min": 1, "a/mean": 2, "a/max": 3}, "a") == "1/2/3"
    assert format.spread({"a/min": 2, "a/mean": 2, "a/max": 2}, "a") == "2"
    assert format.spread({}, "a") is None
    assert format.spread({"a/min": 0.1, "a/mean": 0.2, "a/max": 0.3}, "a", format.share) == "10/20/30 %"


@given(st.one_of(st.none(), numbers), st.integers(0, 40))
def test_a_bar_is_exactly_as_wide_as_asked(share, width):
    assert len(glyphs.bar(share, width)) == width


@given(st.lists(numbers, max_size=30), st.integers(1, 20))
def test_a_sparkline_has_one_cell_per_value(values, width):
    assert len(glyphs.sparkline(values, width)) == min(len(values), width)


def test_a_little_is_not_nothing():
    assert glyphs.bar(0.001, 10).strip()
    assert not glyphs.bar(0.0, 10).strip()


@given(points, st.integers(1, 60), st.integers(1, 20))
def test_a_plot_never_fails_and_keeps_its_size(curve, width, height):
    drawn = plot([sorted(curve)], width, height)
    if drawn is not None:
        rows = drawn[0].rows()
        assert len(rows) == height
        assert all(sum(len(text) for text, _ in row) == width for row in rows)


def test_a_line_goes_from_corner_to_corner():
    canvas, x_range, y_range = plot([[(0, 0.0), (10, 10.0)]], 4, 2)
    lines = ["".join(text for text, _ in row) for row in canvas.rows()]
    assert lines == ["  ⢀⠔", "⡠⠊  "] or (lines[0][3] != " " and lines[1][0] != " " and lines[0][0] == " " == lines[1][3])
    assert (x_range, y_range) == ((0, 10), (0, 10))


def test_a_nan_leaves_a_gap():
    curve = [(float(i), math.nan if 4 <= i <= 6 else 1.0) for i in range(11)]
    canvas, _, _ = plot([curve], 10, 1)
    line = "".join(text for text, _ in canvas.rows()[0])
    assert " " in line.strip()


@given(points, st.integers(4, 50))
def test_thinning_keeps_the_extremes(curve, limit):
    kept = thin(curve, limit)
    assert len(kept) <= max(len(curve) if len(curve) <= limit else 0, 1.5 * limit + 3)
    finite = [y for _, y in curve if math.isfinite(y)]
    if finite:
        assert {min(finite), max(finite)} <= {y for _, y in kept}


@given(points, st.integers(1, 60), st.integers(1, 12))
def test_a_chart_fits_its_panel(curve, width, height):
    lines = chart([sorted(curve)], width, height)
    assert len(lines) <= height
    assert all(getattr(line, "cell_length", len(line)) <= max(width, len(format.ABSENT)) for line in lines)


@given(st.text(max_size=40), st.integers(1, 30), st.booleans(), st.booleans())
def test_a_cell_is_exactly_as_wide_as_its_column(text, width, right, both_ends):
    text = "".join(c for c in text if c.isprintable())
    assert cell_len(fit(text, width, right, both_ends)) == width


def test_a_long_name_keeps_both_ends():
    assert fit("guess-max_staleness=1-s43", 16, both_ends=True) == "guess-max_…1-s43"
    assert fit("guess-max_staleness=1-s43", 16) == "guess-max_stale…"
    assert fit("short", 16, both_ends=True).rstrip() == "short"


KINDS = ["phase", "sync", "fault", "checkpoint", "control", "alert", "eval", "note", "metrics", "new"]
FIELDS = ["phase", "detail", "what", "seconds", "bytes", "why", "ok", "name", "who", "message", "pause_seconds", "held",
          "fatal", "rule", "text", "action"]  # fmt: skip
anything = st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.text()), st.booleans())


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), anything))
def test_any_event_becomes_one_clean_line(kind, data):
    line = sentence(kind, data, 3, 3)
    assert "\n" not in line and "\x1b" not in line


def test_events_read_as_sentences():
    assert sentence("sync", {"pause_seconds": 0.031, "held": 12}, 7, 7) == (
        "weights v7 published, engines paused 0.03 s, 12 requests held"
    )
    assert sentence("checkpoint", {"seconds": 0.31, "bytes": 4_100_000, "why": "stop"}, 9) == (
        "checkpoint of step 9, 0.3 s, 4.1 MB, stop"
    )
    assert sentence("control", {"name": "set", "who": "ada@x", "ok": False, "message": "lr must be above 0"}) == (
        "set by ada@x refused: lr must be above 0"
    )
    assert sentence("fault", {"what": "engine_died", "detail": "engine 1", "fatal": True}) == "fatal: engine_died: engine 1"
