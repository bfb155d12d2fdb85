"""Going back in time, zoomed curves, the panels that open by a key: by keyboard only."""

import pytest

from molt_tui.tui.app import MoltApp
from molt_tui.tui.screens.pick import MetricPicker
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.widgets.curves import RewardPanel
from tests.tui.conftest import Driver
from tests.tui.fake_source import RUNS, FakeSource, view

RUN = RUNS[0].id
BACK, ON, BACK_TEN, ON_TEN = "left_square_bracket", "right_square_bracket", "left_curly_bracket", "right_curly_bracket"


def reward_at(step: int) -> str:
    return f"{dict(view().curves['reward/mean'])[step]:.3f}"


async def test_every_panel_shows_the_step_that_was_gone_to(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press(BACK_TEN, BACK_TEN, BACK, ON)
        text = driver.text()
        assert "at step 122 of 142, n: live" in text
        assert "step 122: balanced" in text
        assert f"Reward  {reward_at(122)}" in text
        assert f"{122 % 7} of 16" in text
        assert "│" in text  # the cursor in the curves


async def test_new_steps_do_not_move_the_past(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press(BACK_TEN)
        driver.source.shown = view(newest_step=150, facts={"step": 150})
        await driver.refresh()
        assert "at step 132 of 150" in driver.text()
        await driver.press("n")
        assert "n: live" not in driver.text()
        assert "step 150/400" in driver.text()


async def test_the_first_and_the_last_step_are_the_ends(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press(ON)
        assert driver.app.screen.at is None
        await driver.press(*[BACK_TEN] * 20)
        assert "at step 1 of 142" in driver.text()
        await driver.press(*[ON_TEN] * 15)
        assert driver.app.screen.at is None


async def test_escape_leaves_the_zoom_then_the_past_then_the_screen(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press(BACK, "z", "escape")
        assert "Queue" in driver.text() and "n: live" in driver.text()
        await driver.press("escape")
        assert "n: live" not in driver.text()
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_a_run_that_ended_has_an_end_and_no_life(open_app):
    source = FakeSource()
    source.shown = view(state="completed", facts={"state": "completed"})
    async with open_app(run=RUN, source=source) as driver:
        await driver.press(BACK)
        assert "n: the end" in driver.text()


async def test_the_cursor_of_a_zoomed_curve_moves_by_columns(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("left")
        assert driver.app.screen.at is None  # not zoomed: the key walks the panels
        await driver.press("right", "z", "left", "left")
        assert driver.app.screen.at == 138
        assert f"Reward  {reward_at(138)}" in driver.text()
        await driver.press("right", "right")
        assert driver.app.screen.at is None


async def test_logarithmic_and_smoothed_curves_say_so(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("z", "L")
        assert "(log)" in driver.text()
        await driver.press("s", BACK)
        assert "(log, mean of 5 0.5" in driver.text()
        await driver.press("s", "s", "L", "escape")
        assert "mean of" not in driver.text() and "(log" not in driver.text()


async def test_any_metric_can_be_drawn(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("m")
        assert isinstance(driver.app.screen, MetricPicker)
        await driver.type("kv max")
        await driver.press("enter")
        await driver.wait_for("engine/kv_frac/max")
        assert "KV cache in use" in driver.text()
        assert "step 1 " in driver.text()
        await driver.press("m", "escape")
        assert isinstance(driver.app.screen, RunScreen)
        assert "engine/kv_frac/max" in driver.text()
        await driver.press("escape")
        assert "engine/kv_frac/max" not in driver.text()


async def test_the_picker_walks_and_survives_what_matches_nothing(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("m", "down", "down", "up", "pagedown", "pageup")
        await driver.type("no such metric")
        await driver.press("down", "enter")
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.metric is None


@pytest.mark.parametrize(("key", "words"), [("a", "healthy:"), ("e", "not captured"), ("l", "line 59")])
async def test_a_key_opens_a_panel_and_closes_it(open_app, key, words):
    source = FakeSource()
    source.shown = view(metrics={"routing/replayed_mismatch_frac": 0.02})
    async with open_app(run=RUN, source=source) as driver:
        await driver.press(key)
        assert words in driver.text()
        await driver.press(key)
        assert words not in driver.text()
        assert "Queue" in driver.text()


async def test_alerts_say_what_to_do_and_what_is_healthy(open_app):
    source = FakeSource()
    source.shown = view(metrics={"routing/replayed_mismatch_frac": 0.02, "is/masked_frac": 1.0, "optim/skipped": 1})
    async with open_app(run=RUN, source=source) as driver:
        lines = driver.text().splitlines()
        assert "every token is masked" in lines[1] and "+2 more (a)" in lines[1]
        await driver.press("a")
        text = driver.text()
        for words in (
            "1 critical, 2 warning",
            "is_correction_threshold",
            "steps skipped",
            "routing replay misses 2 %",
            "exactly 0",
        ):
            assert words in text, words


async def test_alerts_say_when_they_applied(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("a")
        lines = driver.text().splitlines()
        spike = next(line for line in lines if line.strip().startswith("mismatch-spike"))
        assert "·" * 30 + "▲" * 30 in spike
        assert any("when: steps" in line and line.rstrip().endswith("119") for line in lines)


async def test_steps_without_a_report_are_not_zero(open_app):
    async with open_app(run=RUN, size=(160, 45)) as driver:
        await driver.press("e")
        layer0, layer2 = (next(line for line in driver.text().splitlines() if line.startswith(f"     {i} ")) for i in (0, 2))
        assert layer0[7 + 60] == layer2[7 + 60] == "╌"
        assert layer2[7 + 30] == " " and layer0[7 + 1] == "█"


async def test_one_smoothed_panel_is_remembered_through_refreshes(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("s", "z")
        await driver.refresh()
        assert driver.app.screen.query_one(RewardPanel).chart_look.smooth == 5
        assert "mean of 5" in driver.text()


async def test_a_run_without_a_checkpoint_is_not_offered_one(open_app):
    source = FakeSource()
    failed = {"state": "failed", "detail": "OutOfMemoryError: 1.2 GiB", "last_checkpoint": None}
    source.shown = view(state="failed", facts=failed, verdicts=view(facts=failed).verdicts)
    async with open_app(run=RUN, source=source) as driver:
        assert "no checkpoint was saved" in driver.text()
        await driver.press("p")
        assert "r launches it anew" in driver.text()
        assert "last checkpoint" not in driver.text()


async def test_messages_do_not_hide_the_figures():
    app = MoltApp(FakeSource(), interval_s=3600.0, open_run=RUN)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        driver = Driver(app, pilot, app.source)
        await driver.settle()
        await driver.press("y")
        await driver.wait_for("copied")
        for words in ("train 70 %", "40/48/56", "21/32/58 %, worst engine 1"):
            assert words in driver.text(), words
