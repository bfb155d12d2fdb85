"""The Runs screen by keyboard."""

from dataclasses import replace

from molt_tui.tui.screens.dialogs import Confirm
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.widgets.key_table import KeyTable
from tests.tui.fake_source import RUNS, FakeSource


async def test_every_run_is_listed_with_its_state_in_words(open_app):
    async with open_app() as driver:
        text = driver.text()
        assert "▲ generation-bound: trainer idle 62 %" in text
        for words in ("▲ running", "✔ completed", "✖ failed", "‖ paused", "142/400", "0.530", "NaN", "sums-moe"):
            assert words in text
        assert "4 runs: 1 needs a look (!), 1 running, 1 paused, 1 failed" in text
        assert all(len(line) <= 80 for line in text.splitlines())


async def test_cursor_stays_on_its_run_through_refresh_and_sort(open_app):
    async with open_app() as driver:
        await driver.press("j", "j")
        table = driver.app.screen.query_one(KeyTable)
        kept = RUNS[2].id
        assert table.cursor_key == kept
        newer = replace(RUNS[0], id="20270116-new", name="brand-new", group=None, created=RUNS[0].created + 10)
        driver.source.lines = [newer, *RUNS]
        await driver.refresh()
        assert (table.cursor_key, table.cursor) == (kept, 3)
        for _ in range(5):
            await driver.press("s")
            assert table.cursor_key == kept
        driver.source.lines = [r for r in driver.source.lines if r.id != kept]
        await driver.refresh()
        assert table.cursor_key in {r.id for r in driver.source.lines}


async def test_filter_narrows_is_kept_by_enter_and_dropped_by_escape(open_app):
    async with open_app() as driver:
        await driver.press("slash")
        await driver.type("sums !dense")
        table = driver.app.screen.query_one(KeyTable)
        assert table.keys == [RUNS[0].id]
        await driver.press("enter")
        assert driver.app.focused is table
        await driver.press("slash")
        assert driver.app.focused.value == "sums !dense"
        await driver.press("escape")
        assert len(table.keys) == len(RUNS)
        assert driver.app.focused is table


async def test_a_filter_without_a_match_says_how_to_go_on(open_app):
    async with open_app() as driver:
        await driver.press("slash")
        await driver.type("nothing")
        assert "esc clears the filter" in driver.text()


async def test_stop_asks_names_the_run_and_defaults_to_no(open_app):
    async with open_app() as driver:
        await driver.press("x")
        assert isinstance(driver.app.screen, Confirm)
        assert "Stop sums-moe?" in driver.text()
        assert RUNS[0].id in driver.text()
        await driver.press("enter")
        assert isinstance(driver.app.screen, RunsScreen)
        assert driver.source.calls == []
        await driver.press("x", "y")
        assert driver.source.calls == [("stop", RUNS[0].id)]


async def test_a_finished_run_is_not_asked_to_stop(open_app):
    async with open_app() as driver:
        await driver.press("j", "x")
        assert isinstance(driver.app.screen, RunsScreen)
        assert driver.notices() == []


async def test_pause_and_resume_follow_the_state(open_app):
    async with open_app() as driver:
        await driver.press("p", "G", "p", "g", "c")
        assert driver.source.calls == [("pause", RUNS[0].id), ("resume", RUNS[3].id), ("checkpoint", RUNS[0].id)]


async def test_a_failed_run_goes_on_after_a_yes(open_app):
    async with open_app() as driver:
        await driver.press("j", "j", "p")
        assert "Go on with chat-countdown?" in driver.text()
        await driver.press("escape")
        assert driver.source.calls == []
        await driver.press("p", "y")
        assert driver.source.calls == [("resume", RUNS[2].id)]


async def test_the_question_keeps_its_run_when_the_list_moves(open_app):
    async with open_app() as driver:
        await driver.press("x")
        driver.source.lines = [r for r in RUNS if r.id != RUNS[0].id]
        driver.app.screen_stack[0].look()
        await driver.settle()
        await driver.press("y")
        assert driver.source.calls == [("stop", RUNS[0].id)]


async def test_copy_puts_the_id_on_the_clipboard(open_app):
    async with open_app() as driver:
        await driver.press("y")
        assert driver.app.clipboard == RUNS[0].id


async def test_enter_opens_the_run_and_escape_returns_to_it(open_app):
    async with open_app() as driver:
        await driver.press("j", "j", "enter")
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id == RUNS[2].id
        await driver.press("escape")
        assert driver.app.screen.query_one(KeyTable).cursor_key == RUNS[2].id


async def test_quit_names_what_goes_on(open_app):
    async with open_app() as driver:
        await driver.press("q")
    assert driver.app.return_value == "still running: sums-moe, long-horizon\ncome back with: molt-tui"


async def test_an_empty_home_says_what_to_press(open_app):
    source = FakeSource()
    source.lines = []
    async with open_app(source=source) as driver:
        assert "press n to launch one" in driver.text()
        await driver.press("enter", "x", "y", "p", "s")


async def test_a_failing_read_keeps_the_table_and_says_so(open_app):
    async with open_app() as driver:
        driver.app.screen.failed("runs", "molt.db: database is locked; try again")
        await driver.settle()
        assert "not refreshed: molt.db: database is locked" in driver.text()
        assert "sums-moe" in driver.text()
        await driver.refresh()
        assert "not refreshed" not in driver.text()


async def test_a_thousand_runs_scroll_by_key(open_app):
    source = FakeSource()
    source.lines = [replace(RUNS[1], id=f"run-{i:04d}", name=f"run {i}", created=float(-i)) for i in range(1000)]
    async with open_app(source=source) as driver:
        table = driver.app.screen.query_one(KeyTable)
        await driver.press("G")
        assert table.cursor_key == "run-0999"
        assert "run 999" in driver.text()
        await driver.press("ctrl+u", "k")
        assert "run 0 " not in driver.text()
        await driver.press("g")
        assert table.cursor_key == "run-0000"
        assert "run 0" in driver.text()


async def test_a_word_typed_into_a_question_moves_nothing(open_app):
    async with open_app() as driver:
        await driver.press("x", *"hello", "enter")
        assert driver.source.calls == [] and not isinstance(driver.app.screen, Confirm)
        await driver.press("x", "right", "enter")
        assert driver.source.calls == [("stop", RUNS[0].id)]
