"""Which control keys are offered on a run: those that can act on it, in words that are true of it."""

from dataclasses import replace

import pytest
from textual.widgets._footer import FooterKey

from molt_tui.lines import RunLine
from molt_tui.tui.app import MoltApp
from molt_tui.tui.preferences import Preferences
from molt_tui.tui.screens.controls import CAN
from molt_tui.tui.screens.dialogs import Confirm
from tests.tui.conftest import Driver
from tests.tui.fake_runs import grouped_source
from tests.tui.fake_source import RUNS, FakeSource, view

RUN = RUNS[0].id
# state (with a checkpoint, not on Slurm) -> the keys that act, and what the key that pauses does
OFFERED = {
    "draft": ("", None), "queued": ("x", None), "starting": ("pxc", "Pause"), "running": ("pxc", "Pause"),
    "paused": ("pxc", "Go on"), "stopping": ("x", None), "completed": ("", None), "failed": ("p", "Go on"),
    "cancelled": ("p", "Go on"), "preempted": ("p", "Go on"), "timeout": ("p", "Go on"), "lost": ("p", "Go on"),
}  # fmt: skip


def offered(driver) -> dict[str, str]:
    """The control keys that act now, with their words."""
    found = driver.app.screen.active_bindings
    return {key: found[key].binding.description for key in "pxcS" if key in found}


def foot(driver) -> str:
    return driver.text().splitlines()[-1]


@pytest.mark.parametrize("state", OFFERED)
async def test_the_list_offers_what_can_act(open_app, state):
    source = FakeSource()
    source.lines = [replace(RUNS[0], state=state, last_checkpoint=5)]
    keys, word = OFFERED[state]
    async with open_app(source=source) as driver:
        assert set(offered(driver)) == set(keys) and offered(driver).get("p") == word
        assert ("x Stop" in foot(driver)) == ("x" in keys)
        assert ("p Pause" in foot(driver)) == (word == "Pause") and ("p Go on" in foot(driver)) == (word == "Go on")
        assert "r Relaunch" in foot(driver)
        await driver.press(*(set("pxcS") - set(keys)))
        assert driver.source.calls == [] and driver.notices() == [] and not isinstance(driver.app.screen, Confirm)


@pytest.mark.parametrize("state", OFFERED)
async def test_the_dashboard_offers_the_same(open_app, state):
    source = FakeSource()
    source.shown = view(state=state, facts={"state": state, "last_checkpoint": 5})
    async with open_app(source=source, run=RUN) as driver:
        keys, word = OFFERED[state]
        assert set(offered(driver)) == set(keys) and offered(driver).get("p") == word
        assert ("x Stop" in foot(driver)) == ("x" in keys) and ("p Go on" in foot(driver)) == (word == "Go on")


async def test_the_footer_follows_the_run_and_the_cursor(open_app):
    async with open_app() as driver:
        assert "p Pause x Stop" in foot(driver)
        await driver.press("j")  # completed
        assert "Pause" not in foot(driver) and "Stop" not in foot(driver)
        await driver.press("G")  # paused
        assert "p Go on x Stop" in foot(driver)
        driver.source.lines[3] = replace(RUNS[3], state="failed", last_checkpoint=None)
        await driver.refresh()
        assert "Go on" not in foot(driver) and "Stop" not in foot(driver)
    async with open_app(run=RUN) as driver:
        assert "p Pause x Stop" in foot(driver)
        driver.source.shown = view(state="completed", facts={"state": "completed"})
        await driver.refresh()
        assert "Pause" not in foot(driver) and "Stop" not in foot(driver)


async def test_the_footer_keeps_its_widgets_while_the_cursor_walks_over_runs(open_app):
    source = FakeSource()
    states = ("running", "completed", "paused", "stopping", "running")
    source.lines = [replace(RUNS[0], group=None, id=f"2027-{9 - i}", state=state) for i, state in enumerate(states)]
    async with open_app(source=source) as driver:
        made = list(driver.app.screen.query(FooterKey))
        words = ["p Pause x Stop", "space Mark ? Help", "p Go on x Stop", "space Mark x Stop", "p Pause x Stop"]
        for expected in words:
            assert expected in foot(driver)
            await driver.press("j")
        assert list(driver.app.screen.query(FooterKey)) == made


async def test_the_footer_is_made_anew_for_keys_that_it_lacks(open_app):
    source = FakeSource()
    source.lines = [replace(RUNS[1], group=None), replace(RUNS[0], group=None, created=1.0)]
    async with open_app(source=source) as driver:
        assert "Pause" not in foot(driver)
        await driver.press("j", "k", "j")
        assert "p Pause x Stop ? Help q Quit" in foot(driver)


async def test_stop_is_offered_when_one_of_the_marked_is_at_work(open_app):
    async with open_app() as driver:
        await driver.press("j", "space")  # the completed one, and on to the failed one
        assert "Stop" not in foot(driver)
        await driver.press("g", "space", "j")
        assert "x Stop" in foot(driver)


async def test_a_group_says_how_many_x_would_stop(open_app):
    async with open_app(source=grouped_source()) as driver:
        await driver.press("j")
        assert "x stops the 3 at work, v compares it" in driver.text()
        await driver.press("slash", *"group:lr1e-6", "enter")
        assert "enter unfolds or folds it, v compares it" in driver.text() and "Stop" not in foot(driver)


async def test_nothing_is_offered_without_a_run(open_app):
    source = FakeSource()
    source.lines = []
    async with open_app(source=source) as driver:
        await driver.press(*"pxcSytaDr")
        assert driver.source.calls == [] and driver.notices() == []
        assert "Pause" not in foot(driver) and "Relaunch" not in foot(driver)


async def test_read_only_offers_no_key_that_changes_a_run():
    source = FakeSource()
    app = MoltApp(source, Preferences(read_only=True), interval_s=3600.0)
    async with app.run_test(size=(80, 24)) as pilot:
        driver = Driver(app, pilot, source)
        await driver.settle()
        assert (
            not {"p", "x", "c", "t", "a", "D", "n", "r"} & set(app.screen.active_bindings) and "y" in app.screen.active_bindings
        )
        await driver.press("enter")
        assert not {"p", "x", "c", "r"} & set(app.screen.active_bindings)
        assert "Launch" not in [command.title for command in app.get_system_commands(app.screen)]
        app.open_form("demo")
        await driver.settle()
        assert "v" in app.screen.active_bindings and "ctrl+s" not in app.screen.active_bindings
        assert "Start" not in foot(driver)
        await driver.press("v")
        assert "ctrl+s" not in app.screen.active_bindings


def test_a_run_without_a_checkpoint_goes_on_only_where_it_can():
    ended = RunLine("a", "a", "failed")
    assert not CAN["pause"](ended) and CAN["pause"](replace(ended, last_checkpoint=7))
    assert CAN["pause"](replace(ended, job_id="81")), "Slurm takes it again, from step 0"
    assert CAN["pause"](replace(ended, state="lost")), "nobody wrote that it cannot"
    assert not CAN["pause"](replace(ended, state="completed", job_id="81", last_checkpoint=9))
    assert CAN["stacks"](replace(ended, state="running", job_id="81")) and not CAN["stacks"](replace(ended, state="running"))
