"""Pictures of the launch screens and the cluster; accepted like those of test_snapshots.py."""

from __future__ import annotations

import pytest

from molt_tui.tui.screens import cluster
from tests.tui.fake_launch import JOB, NEW_RUN
from tests.tui.fake_source import FakeSource
from tests.tui.test_snapshots import compare, normalise

NOW = 1_800_000_000.0
FORM, REVIEW = ["n", "enter"], ["n", "enter", "o", "ctrl+s"]
CASES = {
    "launch": {"shows": "Countdown", "keys": ["n"]},
    "launch-form": {"shows": "ctrl+s starts it", "keys": FORM},
    "launch-form-wide": {"shows": "then submits", "keys": [*FORM, "o"], "size": (150, 40)},
    "launch-form-wrong": {"shows": "got 'x'", "keys": [*FORM, "o", *"jjjjj", "j", "enter", "ctrl+u", "x", "enter"]},
    "launch-form-sweep": {"shows": "shows 2 runs", "keys": [*FORM, *"jjjjj", "w", "ctrl+u", *"0.1,1", "enter"]},
    "launch-form-mono": {"shows": "ctrl+s starts it", "keys": FORM, "theme": "molt-mono"},
    "launch-form-light": {"shows": "ctrl+s starts it", "keys": FORM, "theme": "molt-light"},
    "launch-review": {"shows": "ctrl+s submits it", "keys": REVIEW},
    "launch-review-memory": {"shows": "ctrl+s submits it", "keys": [*REVIEW, "tab"], "size": (150, 40)},
    "launch-review-script": {"shows": "ctrl+s submits it", "keys": [*REVIEW, "tab", "tab", "tab"]},
    "cluster": {"shows": "long-horizon", "keys": ["C"]},
    "cluster-wide": {"shows": "long-horizon", "keys": ["C", "j"], "size": (150, 40)},
    "cluster-light": {"shows": "long-horizon", "keys": ["C", "tab"], "theme": "molt-light"},
    "cluster-mono": {"shows": "long-horizon", "keys": ["C", "tab"], "theme": "molt-mono"},
    "run-queued-job": {"shows": "jobs of higher priority", "keys": [], "run": NEW_RUN},
}


@pytest.mark.parametrize("name", CASES)
async def test_screen(open_app, name, monkeypatch):
    monkeypatch.setattr(cluster.time, "time", lambda: NOW)
    case = dict(CASES[name])
    keys, shows, source = case.pop("keys"), case.pop("shows"), FakeSource()
    source.shown_job = JOB if "job" in name else None
    async with open_app(source=source, **case) as driver:
        await driver.press(*keys)
        await driver.wait_for(shows)
        await driver.wait_for("Quit")  # the footer follows the screen
        driver.app.cursor_blink = False
        picture = normalise(driver.app.export_screenshot(simplify=True))
    compare(name, picture)
