"""Pictures of the Runs screen with groups, marks and a filter, of its dialogs, and of the Compare screen."""

import pytest

from tests.tui.fake_runs import grouped_source
from tests.tui.fake_source import RUNS
from tests.tui.test_snapshots import compare, still

VERSUS = ["space", "space", "j", "space", "v"]
CASES = {
    "runs-groups": {"shows": "lr1e-6", "keys": ["j", "f", "j", "j", "space", "space"]},
    "runs-groups-wide": {"shows": "lr1e-6", "keys": ["j", "f", "j", "j"], "size": (150, 40)},
    "runs-groups-light": {"shows": "lr1e-6", "keys": ["j"], "theme": "molt-light"},
    "runs-groups-mono": {"shows": "lr1e-6", "keys": ["j", "f"], "theme": "molt-mono"},
    "runs-filter": {"shows": "tag:oom", "keys": ["slash", *"state:failed tag:oom"]},
    "runs-filter-wrong": {"shows": "character 14", "keys": ["slash", *"state:failed re:1"]},
    "runs-tag": {"shows": "Tags of", "keys": ["j", "t"]},
    "runs-delete": {"shows": "Delete 3 runs?", "keys": ["slash", *"group:lr1e-6", "enter", "D"]},
    "compare": {"shows": "training step", "keys": VERSUS},
    "compare-wide": {"shows": "training step", "keys": VERSUS, "size": (150, 40)},
    "compare-light": {"shows": "training step", "keys": VERSUS, "theme": "molt-light"},
    "compare-mono": {"shows": "training step", "keys": VERSUS, "theme": "molt-mono"},
    "compare-cursor": {"shows": "mean of 5", "keys": [*VERSUS, "s", "L", *["left"] * 20]},
    "compare-settings": {"shows": "train.seed", "keys": [*VERSUS, "tab"]},
    "compare-final": {"shows": "loss/entropy", "keys": [*VERSUS, "tab", "tab"]},
    "compare-metric": {"shows": "loss/entropy", "keys": [*VERSUS, "m", *"lo"]},
}


@pytest.mark.parametrize("name", CASES)
async def test_picture(open_app, name):
    case = dict(CASES[name])
    keys, shows = case.pop("keys"), case.pop("shows")
    async with open_app(source=grouped_source(extra=RUNS), **case) as driver:
        await driver.press(*keys)
        await driver.wait_for(shows)
        driver.app.cursor_blink = False
        picture = await still(driver)
    compare(name, picture)
