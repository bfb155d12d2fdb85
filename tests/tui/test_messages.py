"""Where messages stand: verdict, advice, what a row means and the footer can be read while one is shown."""

from dataclasses import replace

import pytest

from molt_tui.tui.app import MoltApp
from tests.tui.conftest import Driver
from tests.tui.fake_source import RUNS, FakeSource

LONG = "sums-moe was asked to stop and has not ended yet; its supervisor does not answer on this host"
# screen: keys to it, lines at the bottom that stay
SCREENS = {
    "runs": ([], 4), "run": (["enter"], 1), "launch": (["n"], 3), "form": (["n", "enter"], 4), "compare": (["v"], 4),
    "review": (["n", "enter", "v"], 2), "traces": (["enter", "t"], 6), "tokens": (["enter", "t", "enter"], 6),
    "cluster": (["C"], 3), "query": (["Q"], 1), "group": (["enter", "t", "v"], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
async def test_a_message_hides_nothing_that_one_acts_by(name):
    keys, below = SCREENS[name]
    source = FakeSource()
    source.lines = [replace(RUNS[0], job_id="81"), *RUNS[1:]]
    app = MoltApp(source, interval_s=3600.0)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        driver = Driver(app, pilot, source)
        await driver.settle()
        await driver.press(*keys)
        before = driver.text().splitlines()
        app.notify(LONG, markup=False, timeout=30)
        await driver.wait_for("was asked to stop")
        after = driver.text().splitlines()
        assert after[-below:] == before[-below:]
        assert after[:3] == before[:3], "state, verdict and advice stand on top of a dashboard"
