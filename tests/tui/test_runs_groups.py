"""Groups, marks, tags, notes and deletion on the Runs screen, by keyboard only."""

from dataclasses import replace

import pytest

from molt_tui.grouping import GROUP_KEY, ORDERS, GroupLine, arrange, fold, unfolded
from molt_tui.tui.screens.dialogs import Confirm
from molt_tui.tui.screens.prompts import Ask, narrowed
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.source import NoteLine
from molt_tui.tui.widgets.key_table import KeyTable
from tests.tui.fake_runs import SEEDS, grouped_source, seed
from tests.tui.fake_source import RUNS

LR3, LR1 = GROUP_KEY + "lr3e-6", GROUP_KEY + "lr1e-6"


def keys(driver) -> list[str]:
    return driver.app.screen.query_one(KeyTable).keys


def cursor(driver) -> str | None:
    return driver.app.screen.query_one(KeyTable).cursor_key


async def test_seeds_are_one_line_with_mean_sd_and_the_worst_state(open_app):
    async with open_app(source=grouped_source()) as driver:
        line = next(x for x in driver.text().splitlines() if "lr3e-6" in x)
        assert "✖ 3 running" in line and "▸ lr3e-6 ×4" in line and "0.530±0.026" in line and "kl-spike" in line
        assert "✔ completed" in next(x for x in driver.text().splitlines() if "lr1e-6 ×3" in x)
        assert "1 needs a look (!)" not in driver.text() and "2 need a look (!)" in driver.text()
        await driver.press("j")
        text = driver.text()
        assert "1 failed, 3 running" in text and "n=4" in text and "lr3e-6-s1: ✖ KL to the reference is 8.1" in text


async def test_a_group_unfolds_and_folds_and_the_cursor_stays_with_it(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("j", "enter")
        assert cursor(driver) == LR3 and len(keys(driver)) == 2 + 4 + 4
        await driver.press("j", "j")
        assert cursor(driver) == "2027-lr3e-6-s1"
        await driver.press("f")
        assert cursor(driver) == LR3 and len(keys(driver)) == 2 + 4
        await driver.press("F")
        assert len(keys(driver)) == 2 + 4 + 7
        await driver.press("F")
        assert len(keys(driver)) == 2 + 4


async def test_the_next_trouble_is_one_key_away_and_opens_its_group(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("exclamation_mark")
        assert cursor(driver) == "2027-lr3e-6-s1"
        assert "lower actor.adam.lr" in driver.text()
        await driver.press("exclamation_mark")
        assert cursor(driver) == RUNS[0].id


async def test_the_log_of_a_run_is_one_key_away(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("l")
        await driver.wait_for("line 59")
        assert driver.app.screen.run_id == RUNS[0].id


async def test_a_failed_run_without_a_checkpoint_does_not_promise_one(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("slash", *"oom", "enter")
        assert "CUDA out of memory on rank 2" in driver.text()
        assert "no checkpoint was saved" in driver.text() and "from the last checkpoint" not in driver.text()
        await driver.press("p")
        assert "No checkpoint is known" in driver.text()


async def test_stop_acts_on_every_marked_run_at_work_after_one_question(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("space", "space")
        assert "5 marked" in driver.text()
        await driver.press("x")
        assert "Stop 4 runs?" in driver.text() and "1 of those chosen ended already" in driver.text()
        await driver.press("y")
        stopped = {call[1] for call in driver.source.calls if call[0] == "stop"}
        assert stopped == {RUNS[0].id, "2027-lr3e-6-s0", "2027-lr3e-6-s1", "2027-lr3e-6-s2"}


async def test_marks_hidden_by_a_filter_are_said_to_be(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("j", "j", "space", "slash", *"chat", "enter", "D")
        assert "Delete 3 runs?" in driver.text() and "3 of them are hidden by the filter" in driver.text()
        await driver.press("n", "escape", "escape", "j", "D")
        assert "hidden" not in driver.text()


async def test_delete_names_the_runs_refuses_live_ones_and_defaults_to_no(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("D")
        assert isinstance(driver.app.screen, RunsScreen) and "stop with x before you delete" in driver.notices()[-1]
        await driver.press("slash", *"group:lr1e-6", "enter", "D")
        assert isinstance(driver.app.screen, Confirm)
        text = driver.text()
        assert "Delete 3 runs?" in text and all(f"lr1e-6-s{n}  completed  2027-lr1e-6-s{n}" in text for n in range(3))
        await driver.press("enter")
        assert driver.source.calls == []
        await driver.press("D", "y")
        assert driver.source.calls == [("delete", *(f"2027-lr1e-6-s{n}" for n in range(3)))]


async def test_tags_of_several_runs_are_edited_as_one_line(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("j", "t")
        assert isinstance(driver.app.screen, Ask) and driver.app.focused.value == "seeds, "
        await driver.press(*["backspace"] * 7, *"keep, two words", "enter")
        ids = tuple(f"2027-lr3e-6-s{n}" for n in range(4))
        assert driver.source.calls == [("retag", *ids, ("keep", "two words"), ("seeds",))]
        await driver.press("t", "escape", "t", "enter")
        assert len(driver.source.calls) == 1
        await driver.press("t", *"more", "enter")
        assert driver.source.calls[1:] == [("retag", *ids, ("more",), ())]


async def test_a_note_shows_what_was_said_before(open_app):
    source = grouped_source()
    source.remarks = [NoteLine(1_796_000_000.0, "ada@login1", "note", "reward looks too good")]
    async with open_app(source=source) as driver:
        await driver.press("a")
        assert "ada@login1  note: reward looks too good" in driver.text()
        await driver.press(*"checked", "enter")
        assert driver.source.calls == [("note", RUNS[0].id, "checked")]


async def test_a_bad_filter_says_where_and_leaves_the_last_good_one(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("slash", *"state:failed tag:oom re:1")
        assert "no field 're'" in driver.text() and "character 22: no field" in driver.text()
        assert keys(driver) == ["2027-lr3e-6-s3"]
        await driver.press("enter")
        assert driver.app.focused.id == "filter"
        await driver.press("escape")
        assert len(keys(driver)) == 6


async def test_the_filter_is_there_again_after_another_screen(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("slash", *"reward:>0.6", "enter", "G", "enter", "escape")
        assert "match reward:>0.6" in driver.text()
        await driver.press("slash")
        assert driver.app.focused.value == "reward:>0.6"


async def test_the_cursor_stays_through_sort_filter_refresh_and_a_fold_from_afar(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("F", "j", "j", "j")
        kept = cursor(driver)
        for _ in ORDERS:
            await driver.press("s")
            assert cursor(driver) == kept
            await driver.press("i")
            assert cursor(driver) == kept
        driver.source.lines = [seed("new", n) for n in range(5)] + driver.source.lines[::-1]
        await driver.refresh()
        assert cursor(driver) == kept
        await driver.press("slash", *"group:lr3e-6", "enter")
        assert cursor(driver) == kept
        await driver.press("F")
        assert cursor(driver) == LR3


async def test_trends_are_asked_for_visible_rows_only(open_app):
    source = grouped_source(extra=[replace(RUNS[1], id=f"r{i:04d}", name=f"run {i}", created=float(-i)) for i in range(900)])
    asked: list[str] = []
    trends = source.trends
    source.trends = lambda ids: asked.extend(ids) or trends(ids)
    async with open_app(source=source) as driver:
        assert 10 < len(set(asked)) < 40
        await driver.press("G")
        assert "r0899" in asked and "r0400" not in asked
        before = len(asked)
        await driver.refresh()
        assert len(asked) == before


def test_fold_sorts_groups_by_their_figure_and_runs_inside_the_same_way():
    entries = arrange(fold(SEEDS), "reward", False)
    assert [e.name for e in entries] == ["lr1e-6", "lr3e-6"]
    rows = unfolded(entries, {"lr3e-6"}, "reward", True)
    assert [key for key, _, _ in rows] == [LR1, LR3, *(f"2027-lr3e-6-s{n}" for n in range(4))]
    assert [member for _, _, member in rows] == [False, False, True, True, True, True]
    assert isinstance(arrange(fold(SEEDS), "state", False)[0], GroupLine)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_holds_nan_and_missing_values(order):
    odd = [
        seed("g", n, reward=r, step=None, job_id=None, age_s=None)
        for n, r in enumerate([float("nan"), None, float("inf"), 1e308])
    ]
    alone = [replace(run, group=None) for run in odd]
    for flipped in (False, True):
        assert len(arrange(fold([*odd, *alone]), order, flipped)) == 5


def test_choices_hold_every_word_and_begin_with_the_typed_ones_first():
    choices = [("a", "loss/policy"), ("b", "policy/loss"), ("c", "reward/mean")]
    assert narrowed(choices, "policy") == [choices[1], choices[0]]
    assert narrowed(choices, "lo po") == [choices[0], choices[1]]
    assert narrowed(choices, "") == choices
