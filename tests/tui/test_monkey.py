"""Random keys, sizes, lists and numbers: nothing raises, and the way home stays open."""

import math
import random
from dataclasses import replace

from molt_tui.tui.screens.runs import RunsScreen
from tests.tui.fake_source import METRICS, RUNS, view

KEYS = [
    "j", "k", "h", "l", "g", "G", "n", "s", "slash", "x", "p", "c", "y", "z", "enter", "escape", "tab", "shift+tab",
    "question_mark", "colon", "ctrl+s", "u", "r", "f", "up", "down", "left", "right", "pageup", "pagedown", "home",
    "end", "a", "L", "left_curly_bracket", "right_curly_bracket", "1", ".", "backspace", "space", "ctrl+d", "ctrl+u",
    "t", "Q", "v", "m", "e", "b", "w", "S", "left_square_bracket", "right_square_bracket", "ctrl+r", "ctrl+o", "f2",
    "D", "F", "i", "exclamation_mark", "C", "d",
]  # fmt: skip
VALUES = (None, math.nan, math.inf, 1.0, "x", [1, math.nan])


async def test_a_monkey(open_app):
    dice = random.Random(3)
    async with open_app() as driver:
        for _ in range(60):
            what = dice.random()
            if what < 0.05:
                await driver.pilot.resize_terminal(dice.randint(20, 200), dice.randint(5, 60))
            elif what < 0.15:
                driver.source.lines = [replace(dice.choice(RUNS), id=f"r{i}", name=f"n{i}") for i in range(dice.randint(0, 20))]
                driver.source.shown = view(metrics={key: dice.choice(VALUES) for key in dice.sample(list(METRICS), 5)})
                driver.app.background.ingest_now()
            else:
                await driver.pilot.press(dice.choice(KEYS))
        await driver.pilot.resize_terminal(100, 30)
        await driver.pilot.pause()
        for _ in range(12):
            await driver.pilot.press("escape")
        await driver.settle()
        assert isinstance(driver.app.screen, RunsScreen)
