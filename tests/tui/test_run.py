"""The dashboard of one run by keyboard, with sound, missing and broken numbers."""

import math

import pytest

from engine.metrics import FAMILIES, METRICS, SPREAD_PARTS
from molt_tui.tui.screens.dialogs import TooSmall
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.view import EventLine
from molt_tui.tui.widgets.panel import Panel
from molt_tui.tui.widgets.streams import LogPanel
from tests.tui.fake_source import RUNS, FakeSource, view

RUN = RUNS[0].id
WORDS_80 = (
    "running", "sums-moe", "step 142/400", "v142", "attempt 1", "as of 1 s ago", "balanced: trainer idle 13 %",
    "5 of 16", "12 groups, 96 rollouts", "max 2 of 2", "1 behind", "3.1 % of tokens", "kept 97 %",
    "probe k3 1.3e-4 nats", "4.1 % → 0 % after replay", "99.8 % of expert choices", "eval 0.610", "entropy 0.830",
    "train 70 %", "40/48/56", "21/32/58 %, worst engine 1", "cpu 93 %", "max_staleness set",
)  # fmt: skip
VALUES = [math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, "nan", "\x1b[31m", [], [math.nan, 1e308], None]


async def test_everything_fits_80x24(open_app):
    async with open_app(run=RUN) as driver:
        text = driver.text()
        for words in WORDS_80:
            assert words in text, words
        assert len(text.splitlines()) == 24


async def test_absent_metrics_are_not_zero(open_app):
    source = FakeSource()
    source.shown = view(metrics=dict.fromkeys(source.shown.metrics), curves={}, events=(), log=())
    async with open_app(run=RUN, source=source) as driver:
        assert driver.text().count("not reported") >= 8
        assert "0 %" not in driver.text()
        assert "no step finished yet" in driver.text()


@pytest.mark.parametrize("value", VALUES)
async def test_no_value_of_any_metric_breaks_the_screen(open_app, value):
    names = [m.name for m in METRICS] + [f.name.replace("<name>", "x") for f in FAMILIES]
    names += [f"{m.name}/{part}" for m in METRICS if m.spread for part in SPREAD_PARTS]
    source = FakeSource()
    curves = {name: [(i, value if isinstance(value, float) else 1.0) for i in range(30)] for name in names}
    source.shown = view(metrics=dict.fromkeys(names, value), curves=curves)
    async with open_app(run=RUN, source=source) as driver:
        await driver.press("z", "tab", "z", "escape")
        assert "sums-moe" in driver.text()
        assert "\x1b" not in driver.text()


async def test_nan_is_the_headline_and_the_curve_goes_on(open_app):
    source = FakeSource()
    curve = [(i, math.nan if i == 100 else 0.1) for i in range(143)]
    source.shown = view(metrics={"loss/policy": math.nan}, curves={"loss/policy": curve})
    async with open_app(run=RUN, source=source) as driver:
        assert "✖ loss/policy is NaN" in driver.text()
        assert "press x to stop" in driver.text()
        assert "NaN at step 100" in driver.text()


async def test_zoom_and_back_with_the_heading_in_place(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("z")
        assert "Queue" not in driver.text()
        assert "balanced" in driver.text().splitlines()[1]
        await driver.press("escape")
        assert "Queue" in driver.text()
        await driver.press("tab", "tab", "enter")
        assert "depth over steps" in driver.text()
        await driver.press("escape", "escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_log_follows_until_someone_scrolls_up(open_app):
    async with open_app(run=RUN) as driver:
        assert not driver.app.screen.query_one(LogPanel).display
        await driver.press("l")
        assert "line 59" in driver.text()
        await driver.press("k", "k")
        assert "line 59" not in driver.text()
        assert "stopped, f follows" in driver.text()
        driver.source.shown = view(log=tuple(f"line {i}" for i in range(1, 90)))
        await driver.refresh()
        assert "line 89" not in driver.text()
        await driver.press("f")
        assert "line 89" in driver.text()
        await driver.press("escape")
        assert not driver.app.screen.query_one(LogPanel).display
        assert "Queue" in driver.text()


async def test_only_changed_panels_are_drawn_again(open_app):
    async with open_app(run=RUN) as driver:
        painted = []
        for panel in driver.app.screen.query(Panel):
            panel.refresh = lambda *_, name=panel.id, **__: painted.append(name)
        await driver.refresh()
        assert painted == []
        driver.source.shown = view(metrics={"queue/depth": 6})
        await driver.refresh()
        assert set(painted) == {"queue"}


async def test_commands_act_on_this_run(open_app):
    async with open_app(run=RUN) as driver:
        await driver.press("p", "c", "x", "n", "x", "y", "y")
        assert driver.source.calls == [("pause", RUN), ("checkpoint", RUN), ("stop", RUN)]
        assert driver.app.clipboard == RUN


async def test_stale_data_says_so(open_app):
    source = FakeSource()
    source.shown = view(age_s=75.0, facts={"beat_age_s": 75.0}, verdicts=view(facts={"beat_age_s": 75.0}).verdicts)
    async with open_app(run=RUN, source=source) as driver:
        assert "stale 1 m" in driver.text()
        assert "no heartbeat for 75 s" in driver.text()


async def test_a_failing_read_keeps_the_panels(open_app):
    async with open_app(run=RUN) as driver:
        driver.app.screen.failed("run", "no run 'x'")
        await driver.settle()
        assert "not refreshed: no run 'x'" in driver.text()
        assert "5 of 16" in driver.text()


async def test_wide_terminal_shows_the_log_beside(open_app):
    async with open_app(run=RUN, size=(150, 45)) as driver:
        text = driver.text()
        for words in ("line 59", "ratio", "by layer", "gpu mem", "12 tokens, 0 rollouts"):
            assert words in text, words


async def test_too_small_is_a_card_and_no_key_gets_through(open_app):
    async with open_app(run=RUN) as driver:
        await driver.pilot.resize_terminal(60, 20)
        await driver.settle()
        assert isinstance(driver.app.screen, TooSmall)
        assert "need 80x24, have 60x20" in driver.text()
        await driver.press("x", "p", "c")
        assert driver.source.calls == []
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert isinstance(driver.app.screen, RunScreen)
        assert "balanced" in driver.text()


async def test_markup_in_names_events_and_logs_is_shown_as_it_is(open_app):
    source = FakeSource()
    source.shown = view(name="[red]x[/]", events=(EventLine(0.0, "fault", "[bold]boom [/nope]"),), log=("[link=x]y",))
    async with open_app(run=RUN, source=source) as driver:
        assert "[red]x[/]" in driver.text()
        assert "[bold]boom [/nope]" in driver.text()
        await driver.press("l")
        assert "[link=x]y" in driver.text()


async def test_what_was_measured_at_another_step_is_not_part_of_this_step(open_app):
    source = FakeSource()
    shown = view(metrics={"time/eval": 9.0})
    source.shown = view(metrics={"time/eval": 9.0}, facts={"steps": {**shown.facts.steps, "time/eval": 140}})
    async with open_app(run=RUN, source=source) as driver:
        assert "train 70 %" in driver.text()
        assert "eval 100 %" not in driver.text()
