"""The Compare screen by keyboard, its drawing, and what the store answers."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.wire import RunDir, encode_line
from molt_tui.bands import BandPoint, Spread, band_by_step, thin_band
from molt_tui.comparison import Several, ahead, short
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.services.compare import Comparer
from molt_tui.services.comparison_export import as_json, as_text, save
from molt_tui.store.home import Home
from molt_tui.tui import format
from molt_tui.tui.screens.compare import CompareScreen
from molt_tui.tui.screens.prompts import Pick
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.store_source import StoreSource
from molt_tui.tui.widgets.chart import ChartLook
from molt_tui.tui.widgets.key_table import KeyTable
from molt_tui.tui.widgets.overlay import LETTERS, Overlay, lines_of, overlay, paint
from tests.tui.fake_runs import grouped_source
from tests.tui.fake_source import RUNS, comparison

# By keyboard


async def test_marked_groups_and_runs_open_side_by_side(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("space", "space", "v")
        assert isinstance(driver.app.screen, CompareScreen)
        assert driver.source.calls[-1] == ("compare", "group:lr3e-6", RUNS[0].id, "reward/mean", "step")
        text = driver.text()
        assert "A lr3e-6 ×3" in text and "± 0.03" in text and "x: training step" in text
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_one_key_for_the_axis_and_typing_for_the_metric(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("v", "b")
        assert driver.source.calls[-1][-1] == "tokens" and "by tokens" in driver.text()
        await driver.press("b", "m", *"entr")
        assert isinstance(driver.app.screen, Pick) and "loss/entropy" in driver.text() and "mismatch/k3_kl" not in driver.text()
        await driver.press("tab")
        assert driver.app.focused.value == "loss/entropy"
        await driver.press("enter")
        assert driver.source.calls[-1][-2:] == ("loss/entropy", "time")
        await driver.press("m", "escape")
        assert "loss/entropy" in driver.text()


async def test_the_keys_of_a_curve_act_as_on_the_dashboard(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("space", "space", "v")
        legend, plot = driver.app.screen.query_one("#compared", KeyTable), driver.app.screen.query_one(Overlay)
        newest = legend.rows[1].cells
        assert "Newest" in driver.text() and newest[3][0] == "120"
        await driver.press("left", "left")  # 119 steps on 72 columns: 2 steps a column
        assert plot.look.mark == 116 and "Under cursor" in driver.text()
        under = legend.rows[1].cells
        assert under[3][0] == "116" and under[2][0] == format.number(0.5 * math.tanh(116 / 40))
        await driver.press("s")
        mean = sum(0.5 * math.tanh(step / 40) for step in range(112, 117)) / 5
        assert legend.rows[1].cells[4][0] == f"mean {format.number(mean)}" and "y: mean of 5" in driver.text()
        await driver.press("L")
        assert "y: log, mean of 5" in driver.text()
        await driver.press("right", "right")
        assert plot.look.mark is None and legend.rows[1].cells[:4] == newest[:4]
        await driver.press("h", "escape")
        assert plot.look.mark is None and isinstance(driver.app.screen, CompareScreen)
        await driver.press("left", "b")
        assert plot.look.mark is None, "a place on another axis is another place"
        await driver.press("left", "tab")
        assert "Newest" in driver.text() and "Under cursor" not in driver.text(), "no cursor is to be seen here"
        await driver.press("shift+tab")
        assert "Under cursor" in driver.text()
        await driver.press("n", "tab", "left", "s", "escape")
        assert isinstance(driver.app.screen, RunsScreen), "on the other pages nothing moves the cursor"


async def test_pages_show_settings_that_differ_and_final_metrics(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("space", "space", "v", "tab")
        assert "actor.adam.lr" in driver.text() and "1, 2, 3" in driver.text()
        await driver.press("tab")
        assert "mismatch/k3_kl" in driver.text() and "0.400 ± 0.03" in driver.text()
        await driver.press("shift+tab", "shift+tab")
        assert "x: training step" in driver.text()


async def test_runs_are_added_by_typing_and_taken_out(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("v", "a", *"lr1e-6 group", "enter")
        legend = driver.app.screen.query_one("#compared", KeyTable)
        assert legend.keys == [RUNS[0].id, "group:lr1e-6"]
        await driver.press("j", "d")
        assert legend.keys == [RUNS[0].id]
        await driver.press("d")
        assert legend.keys == [] and "a adds a run or a group" in driver.text()
        await driver.press("e", "y", "m", "escape", "tab", "tab", "tab")
        assert isinstance(driver.app.screen, CompareScreen)


async def test_export_asks_for_a_file_and_copy_gives_markdown(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("v", "e", *["backspace"] * 3, "m", "d", "enter")
        assert ("export", "compare.md") in driver.source.calls
        await driver.press("y")
        assert driver.app.clipboard == f"| metric | {RUNS[0].id} |"


async def test_more_than_eight_are_refused_with_the_number(open_app):
    source = grouped_source(extra=[replace(RUNS[1], id=f"r{i}", name=f"run {i}", group=None) for i in range(9)])
    async with open_app(source=source) as driver:
        await driver.press(*["space"] * 9, "v")
        assert isinstance(driver.app.screen, RunsScreen) and "at most 8" in driver.notices()[-1]


# Drawing


def plain(lines) -> str:
    return "\n".join(line.plain for line in lines)


def test_each_of_eight_curves_has_its_letter_on_it():
    curves = [[BandPoint(x, (k + 1) * x, None, 1) for x in range(1, 60)] for k in range(8)]
    text = plain(overlay(curves, 80, 16, "step"))
    assert all(letter in text for letter in LETTERS) and "step 1" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_band_has_edges_of_dots_around_its_mean():
    with_band = paint([[BandPoint(x, 1.0, 0.5, 3) for x in range(40)]], 40, 8)
    without = paint([[BandPoint(x, 1.0, None, 1) for x in range(40)]], 40, 8)
    dots = [sum(bits.bit_count() for row in drawn[0].dots for bits in row) for drawn in (with_band, without)]
    assert dots[1] == 80 and dots[0] >= 80 + 2 * 20


def test_a_logarithmic_band_is_a_band_of_logarithms():
    curve = [BandPoint(1, 10.0, 9.0, 2), BandPoint(2, 100.0, 100.0, 2)]
    mean, low, high = lines_of(curve, ChartLook(log=True))
    assert mean == [(1, 1.0), (2, 2.0)] and low[0] == (1, 0.0) and high == [(1, math.log10(19)), (2, math.log10(200))]
    assert math.isnan(low[1][1]), "an edge at 0 has no logarithm"
    assert "200" in plain(overlay([curve], 40, 6, "step", ChartLook(log=True))).splitlines()[0]
    assert "no value above 0" in plain(overlay([[BandPoint(1, -1.0, None, 1)]], 40, 6, "step", ChartLook(log=True)))


def test_the_cursor_stands_in_its_column_and_below_it_its_place():
    lines = plain(overlay([[BandPoint(x, 0.0, None, 1) for x in range(101)]], 60, 6, "time", ChartLook(mark=75.0))).splitlines()
    assert [line.find("│") for line in lines[:2]] == [8 + 38, 8 + 38]
    assert "1 m 15 s" in lines[-1]


LOOKS = st.builds(ChartLook, st.booleans(), st.sampled_from([1, 5, 20]), st.none() | st.floats())


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(st.floats(), st.floats(), st.none() | st.floats(min_value=0)), max_size=12), max_size=8),
       st.integers(1, 60), st.integers(1, 12), st.sampled_from(["step", "tokens", "time"]), LOOKS)  # fmt: skip
def test_any_numbers_can_be_drawn(curves, width, height, by, look):
    shown = [[BandPoint(x, y, sd, 1) for x, y, sd in curve] for curve in curves]
    for line in overlay(shown, width + 12, height + 1, by, look):
        assert len(line.plain) <= width + 12 and line.plain.isprintable()


def test_values_as_short_text():
    assert short(Spread(0.5, 0.1, 3)) == "0.5 ± 0.1" and short(Spread(math.nan, None, 0, 2)) == "nan (2 not finite)"
    assert short(Several((1, "a"))) == "1, a" and short(True) == "true" and short(None) == "-" and short([1, 2]) == "[1, 2]"
    assert ahead([1.0, Spread(2.0, None, 1), None], "higher") == 1 and ahead([1.0, 2.0], "lower") == 0
    assert (
        ahead([1.0, 1.0], "higher") is None and ahead([math.nan, 1.0], "higher") is None and ahead([1.0, 2.0], "neither") is None
    )


def test_thinning_keeps_the_extremes_and_a_gap():
    band = [BandPoint(x, math.sin(x), None, 1) for x in range(5000)]
    band[777], band[2222] = BandPoint(777, 9.0, None, 1), BandPoint(2222, math.nan, None, 0)
    thinned = thin_band(band, 800)
    assert len(thinned) < 1000 and band[777] in thinned and any(p.n == 0 for p in thinned)
    assert [p.x for p in thinned] == sorted(p.x for p in thinned)


# The store's answer


def write(home: Home, run_id: str, group: str | None, rewards, lr: float = 1e-3, **extra) -> None:
    """One run with a reward, a step time and a token rate per step."""
    run = RunDir(home.runs_root / run_id).create()
    run.meta.write_bytes(encode_line({"name": extra.get("name", run_id), "created": 1.0, "group": group}))
    run.run_toml.write_text(f"[actor.adam]\nlr = {lr}\n[train]\nseed = {extra.get('seed', 1)}\n")
    number = run.claim_attempt()
    lines = [{"seq": step, "t": 1.0 + step, "kind": "metrics", "step": step, "version": step,
              "metrics": {extra.get("key", "reward/mean"): reward, "time/step": 2.0, "time/forward_backward": 0.5,
                          "perf/train_tok_s": 1000.0}} for step, reward in enumerate(rewards, 1)]  # fmt: skip
    (run.attempt(number) / "events/000000.jsonl").write_bytes(b"".join(map(encode_line, lines)))
    (run.attempt(number) / "exit.json").write_bytes(encode_line({"reason": "completed", "t": 9.0}))
    run.status.write_bytes(encode_line({"attempt": 1, "phase": "completed", "step": len(lines)}))


@pytest.fixture
def source(tmp_path) -> StoreSource:
    home = Home(tmp_path, tmp_path / "runs").create()
    write(home, "s1", "seeds", [0.1, 0.3, float("nan")], seed=1)
    write(home, "s2", "seeds", [0.3, 0.5], seed=2)
    write(home, "alone", None, [0.2, 0.4, 0.6], lr=1e-2)
    found = StoreSource(home)
    found.ingest()
    return found


def test_a_group_is_a_band_and_a_run_is_a_line(source):
    found = source.compare(["group:seeds", "alone"], "reward/mean", "step")
    group, alone = found.curves
    assert [(p.x, round(p.mean, 6), p.n) for p in group[:2]] == [(1, 0.2, 2), (2, 0.4, 2)]
    assert group[0].sd == pytest.approx(math.sqrt(0.02)) and math.isnan(group[2].mean)
    assert [(p.x, p.mean, p.sd) for p in alone] == [(1, 0.2, None), (2, 0.4, None), (3, 0.6, None)]
    assert found.settings["actor.adam.lr"] == [1e-3, 1e-2] and found.settings["train.seed"] == [Several((1, 2)), 1]
    assert found.final["reward/mean"] == [Spread(0.5, None, 1, 1), 0.6] and found.best["reward/mean"] == 1


def test_tokens_and_time_are_sums_over_steps(source):
    tokens = source.compare(["alone"], "reward/mean", "tokens").curves[0]
    assert [p.x for p in tokens] == [500.0, 1000.0, 1500.0]
    assert [p.x for p in source.compare(["alone"], "reward/mean", "time").curves[0]] == [2.0, 4.0, 6.0]
    group = source.compare(["group:seeds"], "reward/mean", "time").curves[0]
    assert (group[0].x, group[-1].x) == (2.0, 4.0) and group[0].mean == pytest.approx(0.2)


def test_the_answer_is_the_same_object_until_there_is_news(source):
    query = (("group:seeds", "alone"), "reward/mean", "step")
    first = source.compare(*query)
    assert source.compare(*query) is first
    write(source.home, "s3", "seeds", [1.0])
    source.ingest()
    assert len(source.compare(*query).subjects[0].run_ids) == 3


def test_what_cannot_be_drawn_is_said(source):
    found = source.compare(["alone", "group:seeds"], "no/such", "tokens")
    assert found.curves == [[], []] and "alone has not reported no/such as a number" in found.problems
    with pytest.raises(Refused, match="one of step, tokens, time"):
        Comparer().compare(source.store, ["alone"], by="wall")
    with pytest.raises(NotFound, match="no run is in a group 'x'"):
        source.compare(["group:x"], "reward/mean", "step")


def test_exports_hold_everything_and_overwrite_nothing(source, tmp_path):
    found = Comparer().compare(source.store, ["seeds", "alone"])
    data = as_json(found)
    assert data["metrics"]["reward/mean"][0] == {"mean": 0.5, "sd": None, "n": 1, "lost": 1}
    assert json.loads(as_text(found, "json"))["curves"][0][2] == [3.0, "nan", None, 0]
    csv = as_text(found, "csv").splitlines()
    assert csv[0] == "what,name,subject,x,value,sd,n" and "curve,reward/mean by step,alone,1.0,0.2,,1" in csv
    assert "| train.seed | 1, 2 | 1 |" in as_text(found, "markdown")
    before = os.umask(0)
    try:
        path = save(found, str(tmp_path / "out.csv"))
    finally:
        os.umask(before)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).read_text().startswith("what,")
    for target, error in ((path, "exists already"), ("x.txt", "must end in"), (str(tmp_path / "no" / "x.md"), "cannot write")):
        with pytest.raises(MoltError, match=error):
            save(found, target)


HOSTILE = st.text(
    st.characters(exclude_characters="\x00/", exclude_categories=["Cs"]), min_size=1, max_size=12
) | st.sampled_from(["\x1b[2J\x1b]52;c;aGk=\x07", "[red]x[/]", "\u202e\u200b漢", "a|b\tc", "\r\n", "%s{}", "group:", "\x9b31m"])
NUMBERS = st.floats() | st.sampled_from([1e308, -1e308, 5e-324])


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_any_bytes_on_both_screens(tmp_path_factory, open_app, data):
    """Names, groups, tags, notes, metric names and values as they come: nothing raises and no control character is drawn."""
    path = tmp_path_factory.mktemp("hostile")
    home = Home(path, path / "runs").create()
    group, key = data.draw(HOSTILE), data.draw(HOSTILE)
    for n in range(3):
        write(home, f"r{n}", group if n < 2 else None, data.draw(st.lists(NUMBERS, max_size=6)), name=data.draw(HOSTILE), key=key)
        run = RunDir(home.runs_root / f"r{n}")
        for action in ("tag", "note"):
            line = encode_line({"t": data.draw(NUMBERS), "who": data.draw(HOSTILE), "action": action, "text": data.draw(HOSTILE)})
            run.notes.write_bytes((run.notes.read_bytes() if run.notes.exists() else b"") + line)
    source = StoreSource(home)
    source.ingest()
    async with open_app(source=source, size=data.draw(st.sampled_from([(80, 24), (150, 40)]))) as driver:
        for keys in (["F", "j", "s", "i"], ["a", "escape", "t", "escape", "D", "escape"], ["slash", *"a:", "escape"],
                     ["space", "space", "space", "v"], ["m", "down", "enter"], ["b", "tab"], ["tab", "j"],
                     ["a", "escape", "e", "escape"], ["y", "escape"]):  # fmt: skip
            await driver.press(*keys)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b]", driver.text()), keys


def test_the_scripted_comparison_is_a_comparison():
    assert comparison(["group:a", "b"]).best == {"reward/mean": 1} and band_by_step([]) == []
