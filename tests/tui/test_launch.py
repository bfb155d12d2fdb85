"""Launching by keyboard: recipe, changed fields, problems, start."""

from molt_tui.tui.screens.launch import FormScreen, LaunchScreen
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.widgets.key_table import KeyTable
from tests.tui.fake_source import RUNS


async def test_recipe_change_start(open_app):
    async with open_app() as driver:
        await driver.press("n")
        assert isinstance(driver.app.screen, LaunchScreen)
        assert "Sums and differences with a tiny MoE" in driver.text()
        await driver.press("enter")
        assert isinstance(driver.app.screen, FormScreen)
        await driver.press("slash")
        await driver.type("temperature")
        await driver.press("enter", "enter")
        driver.app.focused.value = ""
        await driver.type("0.7")
        await driver.press("enter", "escape")
        assert "1 changed, no problem: ctrl+s starts it" in driver.text()
        assert "rollout.temperature" in driver.text().splitlines()[5]
        await driver.press("ctrl+s")
        await driver.settle()
        assert driver.source.calls == [("launch", "demo", {"rollout.temperature": "0.7"}, "", "")]
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id == RUNS[0].id
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_a_wrong_value_is_named_while_it_is_typed_and_blocks_the_start(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "j", "j", "j", "enter")
        driver.app.focused.value = ""
        await driver.type("1e-x")
        assert "✖ --actor.adam.lr: expects number >= 0, got '1e-x'" in driver.text()
        await driver.press("enter", "ctrl+s")
        assert driver.source.calls == []
        assert driver.notices() == ["not started: solve the problems below first"]
        await driver.press("u")
        assert "no problem" in driver.text()


async def test_name_and_group_travel_with_the_launch(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "j", "enter")
        await driver.type("try 1")
        await driver.press("enter", "j", "enter")
        await driver.type("g")
        await driver.press("enter", "g", "enter")
        await driver.settle()
        assert driver.source.calls == [("launch", "demo", {}, "try 1", "g")]


async def test_escape_leaves_one_level_at_a_time(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "slash")
        await driver.type("seed")
        assert len(driver.app.screen.query_one(KeyTable).rows) == 1
        await driver.press("escape")
        assert len(driver.app.screen.query_one(KeyTable).rows) == 7
        await driver.press("j", "j", "j", "enter", "escape")
        assert isinstance(driver.app.screen, FormScreen)
        await driver.press("escape")
        assert isinstance(driver.app.screen, LaunchScreen)
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_the_help_line_explains_the_highlighted_flag(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "j", "j", "j")
        assert "learning rate (can be changed while the run is live)" in driver.text()
        assert "default 1e-06" in driver.text()


async def test_a_failed_launch_stays_and_says_why(open_app):
    async with open_app() as driver:

        def refuse(*_):
            raise RuntimeError("this environment has no engine (ray, vllm, torch)")

        driver.source.launch = refuse
        await driver.press("n", "enter", "ctrl+s")
        await driver.settle()
        assert isinstance(driver.app.screen, FormScreen)
        assert "this environment has no engine" in driver.text()
