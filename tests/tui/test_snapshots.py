"""Pictures of every screen. `MOLT_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_snapshots.py` accepts the new ones after a look."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.tui.fake_source import RUNS, FakeSource, view

FOLDER = Path(__file__).parent / "snapshots"
RUN = RUNS[0].id
SICK = {"loss/policy": float("nan"), "time/trainer_idle_frac": 0.62, "time/wait_batch": 1.43, "time/forward_backward": 0.4,
        "queue/depth": 0}  # fmt: skip
CASES = {
    "runs": {"shows": "sums-dense"},
    "runs-wide": {"shows": "sums-dense", "size": (150, 40)},
    "runs-confirm": {"shows": "Stop it", "keys": ["x"]},
    "runs-help": {"shows": "Closing", "keys": ["question_mark"]},
    "run": {"shows": "balanced", "run": RUN},
    "run-wide": {"shows": "line 59", "run": RUN, "size": (150, 45)},
    "run-light": {"shows": "balanced", "run": RUN, "theme": "molt-light"},
    "run-sick": {"shows": "is NaN", "run": RUN, "metrics": SICK},
    "run-empty": {"shows": "no step finished", "run": RUN, "metrics": dict.fromkeys(view().metrics)},
    "traces": {"shows": "expected 391", "run": RUN, "keys": ["t"]},
    "traces-wide": {"shows": "expected 391", "run": RUN, "keys": ["t", "s", "s", "s"], "size": (150, 40)},
    "group": {"shows": "Marks", "run": RUN, "keys": ["t", "v"]},
    "group-wide": {"shows": "Marks", "run": RUN, "keys": ["t", "v"], "size": (150, 40)},
    "tokens": {"shows": "over age", "run": RUN, "keys": ["t", "j", "enter", "e"]},
    "tokens-light": {"shows": "over age", "run": RUN, "keys": ["t", "j", "enter", "e"], "theme": "molt-light"},
    "tokens-mono": {"shows": "over age", "run": RUN, "keys": ["t", "j", "enter", "e"], "theme": "molt-mono"},
    "tokens-wide": {"shows": "segment 2", "run": RUN, "keys": ["t", "j", "j", "j", "enter", "e"], "size": (150, 40)},
    "query": {"shows": "2 rows", "keys": ["Q", "ctrl+r"]},
    "query-wide": {"shows": "tab reward", "keys": ["Q", "space", "r", "e", "w"], "size": (150, 40)},
    "query-saved": {"shows": "slowest steps", "keys": ["Q", "ctrl+o"]},
    "run-zoom": {"shows": "std 0.490", "run": RUN, "keys": ["z", "left", "left"]},
    "run-past": {"shows": "at step 120 of 142", "run": RUN, "keys": [*["left_curly_bracket"] * 2, *["left_square_bracket"] * 2]},
    "run-alerts": {"shows": "healthy:", "run": RUN, "metrics": SICK, "keys": ["a"]},
    "run-routing": {"shows": "not captured", "run": RUN, "keys": ["e"]},
    "run-metric": {"shows": "KV cache in use", "run": RUN, "keys": ["m", *"kv max", "enter"]},
    "run-mono": {"shows": "is NaN", "run": RUN, "metrics": SICK, "theme": "molt-mono"},
}


def normalise(svg: str) -> str:
    """One element per line; without fonts, the window's decoration and the ids that depend on the content."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r'<clipPath id="terminal-line-\d+">.*?</clipPath>', "", svg, flags=re.S)
    svg = re.sub(r' (clip-path="url\(#terminal-line-\d+\)"|shape-rendering="crispEdges")', "", svg)
    return re.sub(r">\s*<", ">\n<", svg).strip() + "\n"


@pytest.mark.parametrize("name", CASES)
async def test_screen(open_app, name):
    case = dict(CASES[name])
    keys, metrics, shows = case.pop("keys", []), case.pop("metrics", None), case.pop("shows")
    source = FakeSource()
    if metrics:
        source.shown = view(metrics=metrics, **({"curves": {}, "events": (), "log": ()} if name == "run-empty" else {}))
    async with open_app(source=source, **case) as driver:
        await driver.press(*keys)
        await driver.wait_for(shows)
        driver.app.cursor_blink = False
        picture = await still(driver)
    compare(name, picture)


async def still(driver) -> str:
    """The picture once it stands still: layout and footer follow what they show."""
    before, picture = "", normalise(driver.app.export_screenshot(simplify=True))
    while picture != before:
        await driver.settle()
        await driver.pilot.pause(0.05)
        before, picture = picture, normalise(driver.app.export_screenshot(simplify=True))
    return picture


def compare(name: str, picture: str) -> None:
    path = FOLDER / f"{name}.svg"
    if os.environ.get("MOLT_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(picture)
    assert picture == path.read_text(), f"{path.name} differs; look at it, then MOLT_UPDATE_SNAPSHOTS=1"
