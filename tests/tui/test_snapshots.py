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
    "runs": {},
    "runs-wide": {"size": (150, 40)},
    "runs-confirm": {"keys": ["x"]},
    "runs-help": {"keys": ["question_mark"]},
    "run": {"run": RUN},
    "run-wide": {"run": RUN, "size": (150, 45)},
    "run-light": {"run": RUN, "theme": "molt-light"},
    "run-sick": {"run": RUN, "metrics": SICK},
    "run-empty": {"run": RUN, "metrics": dict.fromkeys(view().metrics)},
    "run-zoom": {"run": RUN, "keys": ["z"]},
    "launch": {"keys": ["n"]},
    "launch-form": {"keys": ["n", "enter"]},
}


def normalise(svg: str) -> str:
    """One element per line; without fonts, the window's decoration and the ids that depend on the content."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    return re.sub(r">\s*<", ">\n<", svg).strip() + "\n"


@pytest.mark.parametrize("name", CASES)
async def test_screen(open_app, name):
    case = dict(CASES[name])
    keys, metrics = case.pop("keys", []), case.pop("metrics", None)
    source = FakeSource()
    if metrics:
        source.shown = view(metrics=metrics, **({"curves": {}, "events": (), "log": ()} if name == "run-empty" else {}))
    async with open_app(source=source, **case) as driver:
        await driver.press(*keys)
        driver.app.cursor_blink = False
        picture = normalise(driver.app.export_screenshot(simplify=True))
    path = FOLDER / f"{name}.svg"
    if os.environ.get("MOLT_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(picture)
    assert picture == path.read_text(), f"{path.name} differs; look at it, then MOLT_UPDATE_SNAPSHOTS=1"
