"""Traces, the group and the token view, by keyboard only."""

from molt_tui.tui.format import advantage
from molt_tui.tui.screens.group import GroupScreen
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.tokens import TokenScreen
from molt_tui.tui.screens.traces import TracesScreen
from molt_tui.tui.widgets.key_table import KeyTable
from molt_tui.tui.widgets.token_view import TokenView, marks_of
from tests.tui.fake_source import RUNS

RUN = RUNS[0].id


def shown(driver) -> list[str]:
    return [row.key for row in driver.app.screen.query_one(KeyTable).rows]


async def test_steps_sorting_and_reversing(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("t")
        assert isinstance(driver.app.screen, TracesScreen) and "step 12: 6 rollouts  (2 of 2 steps recorded" in driver.text()
        assert "] Next step" not in driver.text(), "there is none"
        await driver.press("left_square_bracket")
        assert "step 8: 6 rollouts" in driver.text() and "] Next step" in driver.text()
        await driver.press("left_square_bracket")
        assert driver.notices()[-1] == "step 8 is the first one recorded"
        await driver.press("right_square_bracket", "s")
        assert "by reward" in driver.text() and "▼Reward" in driver.text()
        assert shown(driver)[0] == "1/12/tools:1#12/0" and shown(driver)[-1] == "1/12/tools:2#12/1"
        await driver.press("S")
        assert "▲Reward" in driver.text() and shown(driver)[0] == "1/12/tools:1#12/1" and shown(driver)[-1] == "1/12/tools:2#12/1"
        await driver.press("s", "s", "S")
        assert "▼Masked" in driver.text() and shown(driver)[0] == "1/12/tools:1#12/1"
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunScreen)


async def test_search_over_every_step_and_back(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("t", "slash")
        await driver.type("NEARLY")
        await driver.press("enter")
        await driver.wait_for("2 rollouts with 'NEARLY'")
        assert shown(driver) == ["1/8/tools:1#8/1", "1/12/tools:1#12/1"]
        await driver.press("enter")
        assert isinstance(driver.app.screen, TokenScreen) and "step 8" in driver.text()
        await driver.press("escape", "slash")
        assert driver.app.screen.query_one("#filter").value == "NEARLY"
        await driver.press("escape", "escape")
        await driver.wait_for("step 12: 6 rollouts")
        await driver.press("a")
        await driver.wait_for("12 rollouts of every step")
        assert "by ratio" in driver.text()


async def test_walking_through_the_tokens(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("t", "j", "enter")
        view = driver.app.screen.query_one(TokenView)
        assert view.cursor == 13 and "token 14 of 45  v8 begins" in driver.text()
        assert "27 sampled: 12 trained, 56 % masked: 13 over age, 1 ratio high, 1 ratio low" in driver.text()
        assert "masked: over age (at most 2 behind)   sampled by v8, trained at v11: 3 behind" in driver.text()
        await driver.press("e")
        assert view.cursor == 40 and "masked: ratio 0.301 is below 0.5" in driver.text()
        assert "other ones in layers 1, 2 of 4   ·██·" in driver.text()
        await driver.press("n")
        assert view.cursor == 41 and "masked: ratio 2.46 is above 2" in driver.text()
        await driver.press("n")
        assert driver.notices()[-1] == "no masked token after this one" and view.cursor == 41
        await driver.press("N", "N")
        assert view.cursor == 25
        await driver.press("B", "b")
        assert view.cursor == 31
        await driver.press("g", "l", "j")
        assert view.cursor > 1
        await driver.press("G")
        assert view.cursor == 44
        await driver.press("W")
        assert view.cursor == 40
        await driver.press("right_square_bracket")
        assert "rollout 3 of 6" in driver.text() and driver.app.screen.query_one(TokenView).cursor == 13


async def test_marks_say_it_without_colour(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("t", "j", "enter", "m")
        view, rollout = driver.app.screen.query_one(TokenView), driver.app.screen.page.rollout
        assert [marks_of(rollout, i, 3) for i in (0, 13, 33, 40, 41)] == [":::", "xxx", "-  ", "xx!", "xxx"]
        assert "x masked  ^ v ratio beyond 2" in driver.text() and view.marked
        await driver.press("m")
        assert "struck masked" in driver.text() and not view.marked


async def test_no_colour_shows_marks_at_once(open_app):
    async with open_app(run=RUN, theme="molt-mono") as driver:
        await driver.press("t", "enter")
        assert "x masked  ^ v ratio beyond 2" in driver.text()


async def test_a_group_side_by_side(open_app):
    async with open_app(run=RUN, size=(120, 30)) as driver:
        await driver.press("t", "v")
        assert isinstance(driver.app.screen, GroupScreen)
        assert "rollouts 1 to 3 of 4 recorded" in driver.text() and "rewards 1, 1, 0, 0   expected 391" in driver.text()
        await driver.press("right_square_bracket")
        assert "rollouts 2 to 4 of 4" in driver.text()
        await driver.press("tab", "enter")
        assert isinstance(driver.app.screen, TokenScreen) and "tools:1#12/1" in driver.text().splitlines()[0]
        await driver.press("escape")
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert "rollouts 2 to 3 of 4" in driver.text()


async def test_copying_goes_to_the_terminal(open_app, monkeypatch):
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    async with open_app(run=RUN) as driver:
        written = []
        await driver.press("t", "enter")
        monkeypatch.setattr(driver.app._driver, "write", written.append)
        await driver.press("y")
        assert driver.notices()[-1].startswith("copied token: I\n(if nothing arrives: tmux") and driver.app.clipboard == "I"
        sent = "".join(written)
        await driver.press("l", "y")
        assert driver.notices()[-1] == "copied token:  will"
        assert "\x1b]52;c;SQ==\x07" in sent and "\x1bPtmux;\x1b\x1b]52;c;SQ==\x07\x1b\\" in sent


async def test_a_rollout_that_is_gone_says_so(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("t")
        driver.source.records[12] = driver.source.records[12][1:]
        driver.source.rollout = lambda run, place: (_ for _ in ()).throw(OSError("no such file"))
        await driver.press("enter")
        assert "no such file" in driver.text()
        await driver.press("escape")
        assert isinstance(driver.app.screen, TracesScreen)


async def test_a_long_rollout_draws_only_what_is_seen(open_app):
    async with open_app(run=RUN) as driver:
        segment = driver.source.records[12][0]["segments"][0]
        for values in segment.values():
            values.extend(values[13:26] * 800)
        await driver.press("t", "enter")
        view = driver.app.screen.query_one(TokenView)
        drawn = []
        text = view._text
        view._text = lambda pieces: drawn.append(1) or text(pieces)
        await driver.press("G")
        assert view.cursor == len(segment["pieces"]) - 1 > 10_000 and len(drawn) <= 2 * view.size.height
        drawn.clear()
        await driver.press("h")
        assert len(drawn) <= 2


async def test_a_run_without_recorded_rollouts(open_app):
    async with open_app(run=RUN) as driver:
        driver.source.records = {}
        await driver.press("t")
        assert "none recorded (trace.rollouts_per_step)" in driver.text() and "no rollouts" in driver.text()
        await driver.press("right_square_bracket", "enter", "v", "y", "s", "a")
        await driver.wait_for("none recorded (trace.rollouts_per_step)")
        driver.source.records = {3: []}
        await driver.press("a")
        await driver.refresh()
        assert "step 3: 0 rollouts" in driver.text()


def test_what_rounding_left_of_an_advantage_is_none():
    assert advantage(1.8e-16) == advantage(-1.8e-16) == advantage(0.0) == "0"
    assert advantage(-0.25) == "-0.250" and advantage(1e-9) == "1.0e-9" and advantage(None) == "not reported"
