"""The stack of screens: however one gets about, it stays short, esc leads back, and what was typed into a form is kept."""

import random

import pytest

from molt_tui.draft import Draft
from molt_tui.tui.places import BETWEEN, DRAFTS_KEPT, leaving
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.dialogs import Confirm, TooSmall
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from tests.tui.fake_source import RUNS
from tests.tui.test_launch import edit, find, until_on


class Run(MoltScreen):
    pass


class Traces(MoltScreen):
    PART = True


class Tokens(MoltScreen):
    PART = True


class Form(MoltScreen):
    pass


class Other(MoltScreen):
    pass


class Group(MoltScreen):
    PART = True


def stack(driver) -> list[str]:
    return [type(screen).__name__.removesuffix("Screen") for screen in driver.app.screen_stack]


@pytest.mark.parametrize(
    ("beneath", "new", "left"),
    [
        ([], Run, []),
        ([Run], Form, [Run]),
        ([Run, Traces, Tokens], Run, []),  # with its parts
        ([Run, Traces, Form], Run, [Form]),  # others stay
        ([Form, Tokens, Run, Traces], Run, [Form, Tokens]),  # a part belongs to what it was opened from
        ([Run, Tokens, Traces], Tokens, [Run, Traces]),  # a part goes alone
        ([Form, Other, Run, Traces, Tokens], Group, [Other, Run, Traces, Tokens]),  # the last few
    ],
)  # fmt: skip
def test_what_stays_beneath(beneath, new, left):
    screens = [RunsScreen(), *(kind() for kind in beneath)]
    gone = leaving(screens, new())
    assert [type(screen) for screen in screens[1:] if screen not in gone] == left


def test_dialogs_go_and_the_first_screen_stays():
    screens = [RunsScreen(), Run(), Confirm("?", "", "Yes"), TooSmall()]
    assert leaving(screens, RunsScreen()) == screens[2:]


async def test_fifty_jumps_leave_a_short_stack_and_escape_gets_home(open_app):
    dice = random.Random(5)
    async with open_app() as driver:
        app, ids = driver.app, [run.id for run in RUNS]
        ways = [lambda: app.open_run(dice.choice(ids)), lambda: app.open_form(parent=dice.choice(ids)), app.open_launch,
                lambda: app.open_compare([dice.choice(ids)]), app.open_cluster, app.action_query,
                lambda: app.open_traces(dice.choice(ids)), app.action_help]  # fmt: skip
        for _ in range(50):
            dice.choice(ways)()
            await driver.pilot.pause()
            assert len(stack(driver)) == len(set(stack(driver))) <= BETWEEN + 3, "the first, the last, and the help"
        await driver.settle()
        assert len(app._registry) < 400, "screens that were left are gone"
        for _ in range(2 * (BETWEEN + 3)):
            await driver.pilot.press("escape")
        await driver.settle()
        assert stack(driver) == ["Runs"]


async def test_escape_leads_back_to_the_form_from_another_run(open_app):
    async with open_app() as driver:
        await driver.press("enter", "r")
        assert stack(driver) == ["Runs", "Run", "Form"]
        driver.app.open_run(RUNS[1].id)
        await driver.settle()
        assert stack(driver) == ["Runs", "Form", "Run"] and driver.app.screen.run_id == RUNS[1].id
        await driver.press("escape")
        assert stack(driver) == ["Runs", "Form"]
        await driver.press("escape")
        assert stack(driver) == ["Runs"]


async def test_a_help_that_is_open_does_not_stay_beneath(open_app):
    async with open_app() as driver:
        await driver.press("enter", "question_mark")
        driver.app.action_query()
        await driver.settle()
        assert stack(driver) == ["Runs", "Run", "Query"]
        await driver.press("escape")
        assert stack(driver) == ["Runs", "Run"]


async def test_the_query_comes_up_from_beneath_with_its_text(open_app):
    async with open_app() as driver:
        await driver.press("Q")
        driver.app.screen.query_one("SqlEditor").text = "SELECT 7"
        driver.app.open_run(RUNS[0].id)
        await driver.press("Q")
        assert stack(driver) == ["Runs", "Run", "Query"]
        assert driver.app.screen.query_one("SqlEditor").text == "SELECT 7"


async def test_an_answer_that_opens_a_screen_leaves_the_card_of_a_small_terminal_on_top(open_app):
    async with open_app() as driver:
        await driver.pilot.resize_terminal(40, 10)
        driver.app.open_run(RUNS[0].id)
        await driver.settle()
        assert stack(driver) == ["Runs", "Run", "TooSmall"]
        await driver.pilot.resize_terminal(100, 30)
        await driver.settle()
        assert stack(driver) == ["Runs", "Run"]


async def test_changes_to_a_form_are_there_again_until_they_are_launched(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "temperature")
        await driver.press("enter")
        await edit(driver, "0.7")
        await driver.press("escape", "escape", "escape")
        assert stack(driver) == ["Runs"]
        await driver.press("n", "enter")
        assert driver.app.screen.draft.changes == {"rollout.temperature": "0.7"}
        assert any("changes of before" in words for words in driver.notices())
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        await driver.press("escape", "n", "enter")
        assert driver.app.screen.draft.changes == {}


async def test_a_form_whose_changes_were_taken_back_begins_anew(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "o", "o", "escape")
        assert driver.app.kept_draft("demo", "") is None
        await driver.press("enter", "o", "escape")
        assert driver.app.kept_draft("demo", "").on == "slurm"


async def test_few_forms_are_kept(open_app):
    async with open_app() as driver:
        for i in range(3 * DRAFTS_KEPT):
            driver.app.keep_draft(f"recipe-{i}", "", Draft(f"recipe-{i}", on="slurm"))
        kept = [i for i in range(3 * DRAFTS_KEPT) if driver.app.kept_draft(f"recipe-{i}", "")]
        assert kept == list(range(2 * DRAFTS_KEPT, 3 * DRAFTS_KEPT))


@pytest.mark.parametrize("key", ["colon", "question_mark", "x"])
async def test_a_dialog_that_is_closed_while_it_is_covered_stays(open_app, key):
    """A key that was on its way when the terminal became small must close neither the card nor the dialog twice."""
    async with open_app() as driver:
        await driver.press(key)
        dialog = driver.app.screen
        await driver.pilot.resize_terminal(40, 10)
        for _ in range(2):
            dialog.dismiss()
            await driver.pilot.pause()
        assert isinstance(driver.app.screen, TooSmall)
        await driver.pilot.resize_terminal(100, 30)
        assert driver.app.screen is dialog
        await driver.press("escape")
        assert stack(driver) == ["Runs"]
