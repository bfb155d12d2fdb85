"""The Query screen by keyboard only."""

from molt_tui.services.queries import SavedQuery
from molt_tui.store.query import QueryResult
from molt_tui.tui.completion import complete
from molt_tui.tui.data_source import Vocabulary
from molt_tui.tui.screens.help import HelpScreen
from molt_tui.tui.screens.query import QueryScreen, ResultTable
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.widgets.sql_editor import SqlEditor

WORDS = Vocabulary(("metrics", "metric_curve", "run_summary", "SELECT"), ("reward/mean", "reward/std", "time/step"))


async def noticed(driver, words: str) -> None:
    """Until a notice says so."""
    for _ in range(200):
        if any(words in notice for notice in driver.notices()):
            return
        await driver.pilot.pause(0.02)
    raise AssertionError(driver.notices())


def test_completion():
    assert complete("SELECT * FROM met", WORDS) == (14, ["metrics", "metric_curve"])
    assert complete("WHERE key = 'rew", WORDS) == (13, ["reward/mean", "reward/std"])
    assert complete("WHERE key = 'step", WORDS) == (13, ["time/step"])
    assert complete("key = 'it''s' AND sel", WORDS) == (18, ["SELECT"])
    assert complete("-- don't\nmet", WORDS)[1] == ["metrics", "metric_curve"] and complete("a, ", WORDS) == (3, [])
    assert complete("-- don't met", WORDS) == (9, ["metrics", "metric_curve"])


async def test_running_and_opening_a_run(open_app):
    async with open_app() as driver:
        await driver.press("Q", "ctrl+r")
        await driver.wait_for("2 rows")
        assert isinstance(driver.app.screen, QueryScreen) and driver.app.screen.query_one(ResultTable).has_focus
        assert driver.source.asked[0].startswith("SELECT id, state")
        assert "NULL" in driver.text()
        await driver.press("enter")
        assert isinstance(driver.app.screen, RunScreen) and driver.app.screen.run_id == "r1"
        await driver.press("escape")
        assert "2 rows" in driver.text()
        await driver.press("escape", "Q")
        assert "2 rows" in driver.text()


async def test_tab_completes_and_goes_on(open_app):
    async with open_app() as driver:
        await driver.press("Q")
        editor = driver.app.screen.query_one(SqlEditor)
        editor.text = ""
        await driver.type("rew")
        assert "tab reward" in driver.text()
        await driver.press("tab")
        assert editor.text == "reward"
        await driver.type(" '")
        await driver.type("re")
        await driver.press("tab")
        assert editor.text == "reward 'reward/mean"
        await driver.press("tab")
        assert editor.text == "reward 'reward/std"
        await driver.press("shift+tab")
        assert editor.text == "reward 'reward/mean"
        await driver.type("' ")
        await driver.press("tab")
        assert driver.app.screen.query_one(ResultTable).has_focus


async def test_escape_cancels_first(open_app):
    async with open_app() as driver:
        driver.source.result = None
        await driver.press("Q", "ctrl+r")
        await driver.wait_for("esc cancels")
        await driver.press("escape")
        await driver.wait_for("the query was cancelled")
        assert isinstance(driver.app.screen, QueryScreen)


async def test_saving_loading_and_deleting(open_app):
    async with open_app() as driver:
        await driver.press("Q", "f2")
        await driver.type("mine")
        await driver.press("enter")
        await noticed(driver, "saved as mine")
        assert "save mine" in driver.source.asked
        await driver.press("ctrl+o", "d")
        assert "ships with molt-tui" in driver.notices()[-1]
        own = SavedQuery("mine", "SELECT 1", own=True)
        driver.app.screen.queries = {own.name: own, **driver.app.screen.queries}
        driver.app.screen._fill()
        await driver.press("g", "d")
        assert "Delete the query mine?" in driver.text()
        await driver.press("y")
        await noticed(driver, "deleted mine")
        assert "delete mine" in driver.source.asked
        await driver.press("g", "j", "enter")
        await driver.wait_for("2 rows")
        assert "coalesce" in driver.app.screen.query_one(SqlEditor).text


async def test_columns_that_do_not_fit_and_export(open_app):
    async with open_app() as driver:
        names = [f"column_{i}" for i in range(12)]
        driver.source.result = QueryResult(names, [tuple("x" * 12 for _ in names)], "bytes", 0.1)
        await driver.press("Q", "ctrl+r")
        await driver.wait_for("more rows would not fit")
        assert "column_0" in driver.text() and "column_11" not in driver.text()
        await driver.press(*["l"] * 8)
        assert "column_0 " not in driver.text() and "column_11" in driver.text()
        await driver.press("e", "ctrl+u")
        await driver.type("out.md")
        await driver.press("enter")
        await noticed(driver, "1 rows in out.md")
        assert "write markdown out.md" in driver.source.asked
        await driver.press("y")
        assert driver.notices()[-1].startswith("copied row: xxxx")


async def test_help_where_text_is_typed(open_app):
    async with open_app() as driver:
        await driver.press("Q", "question_mark")
        assert driver.app.screen.query_one(SqlEditor).text.endswith("?")
        assert "f1 Help" in driver.text() and "? Help" not in driver.text() and "q Quit" not in driver.text()
        await driver.press("f1")
        assert isinstance(driver.app.screen, HelpScreen)
        await driver.press("f1", "tab")
        assert isinstance(driver.app.screen, QueryScreen)
