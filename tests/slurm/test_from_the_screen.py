"""Slurm by keyboard only: the app over the real services, its keys from Pilot, jobs on the real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.wire import RunDir
from molt_tui.services import slurm as service
from molt_tui.slurm import submit
from molt_tui.slurm.commands import Slurm
from molt_tui.tui.app import MoltApp
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.store_source import StoreSource
from tests.slurm.conftest import TOY_PYTHON, Desk, assert_nothing_left, assert_trained_once

pytestmark = pytest.mark.timeout(400)


class Screen:
    """Keys in, words out; waits for words, for a running job may take its time."""

    def __init__(self, app: MoltApp, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    async def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        for _ in range(int(seconds * 10)):
            if answer := condition():
                return answer
            await self.pilot.pause(0.1)
        raise AssertionError(f"no {what} within {seconds:.0f} s:\n{self.text()}")

    async def shows(self, words: str, seconds: float = 20) -> None:
        await self.until(lambda: words in self.text(), seconds, repr(words))

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause(0.1)


@pytest.fixture
def toy(monkeypatch) -> dict[str, Any]:
    """What the toy engine of every submitted run will do; changed by the test before it launches."""
    plan: dict[str, Any] = {"steps": 10, "seconds": 0.2, "save": 5}
    original = submit.submit

    def submit_with_plan(slurm: Slurm, run: RunDir, *rest: Any, **more: Any) -> submit.Receipt:
        (run.path / "toy.json").write_text(json.dumps(plan))
        return original(slurm, run, *rest, **more)

    monkeypatch.setattr(service.submit, "submit", submit_with_plan)
    return plan


@pytest.fixture
def hurried(monkeypatch) -> None:
    """Slurm is asked every two seconds, so that the test need not wait for the polite interval."""
    monkeypatch.setattr("molt_tui.slurm.poll.RUNNING_SECONDS", 2.0)
    monkeypatch.setattr("molt_tui.slurm.poll.PENDING_SECONDS", 2.0)


def only_run(desk: Desk) -> RunDir:
    (path,) = [p for p in desk.home.runs_root.iterdir() if not p.name.startswith(".")]
    return RunDir(path)


async def test_the_demo_is_launched_on_two_nodes(desk: Desk, toy, hurried):
    site = desk.home.path / "site.toml"
    site.write_text(site.read_text() + f'[slurm]\npython = "{TOY_PYTHON}"\ntime = "00:10:00"\nsignal_seconds = 60\n')
    app = MoltApp(StoreSource(desk.home), interval_s=0.5)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.press("n")
        await screen.shows("Sort digits")
        await screen.press("enter")
        await screen.shows("ctrl+s starts it")
        await screen.press("o")
        await screen.shows("on Slurm")
        await screen.press("slash", *"slurm.nodes", "enter", "enter", "ctrl+u", "2", "enter")
        await screen.shows("1 changed, no problem")
        await screen.press("ctrl+s")
        await screen.shows("ctrl+s submits it", 30)
        await pilot.press("ctrl+s", "ctrl+s")
        await screen.until(lambda: isinstance(app.screen, RunScreen), 60, "dashboard")
        await screen.shows("on testbed", 30)
        await screen.shows("completed", 120)
        run = only_run(desk)
        assert desk.run(run).state == "completed" and len(submit.receipts(run)) == 1
        meta = json.loads(run.meta.read_text())
        assert meta["command"] == ["molt-tui", "launch", "demo", "--slurm.nodes=2"]
        await screen.press("escape", "C")
        await screen.shows("debug *")
        await screen.shows("gpu 4/4")
    assert_trained_once(run, 10)
    assert_nothing_left(run)


async def test_stacks_stop_and_requeue_of_a_job(desk: Desk, hurried, monkeypatch):
    stop = service.stop  # the toy engine reads no commands: do not wait long for its answer
    monkeypatch.setattr(service, "stop", lambda *given, **more: stop(*given, **{**more, "command_s": 2.0}))
    run = desk.launch(steps=900, seconds=0.3, save=5)
    desk.until(run, "running")
    app = MoltApp(StoreSource(desk.home), interval_s=0.5)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("running")
        await screen.press("C")
        await screen.shows(desk.job_id(run))
        await screen.press("enter")
        await screen.shows(f"job {desk.job_id(run)} on testbed: node", 30)
        await screen.press("S")
        await screen.shows("== node", 60)
        await screen.press("escape", "x")
        await screen.shows("Stop ")
        await screen.press("y")
        await screen.shows("stopped", 90)
        await screen.press("p")
        await screen.shows("Go on with")
        (run.path / "toy.json").write_text(json.dumps({"steps": 0, "seconds": 0.1}))
        await screen.press("y")
        await screen.shows("completed", 120)
        await screen.shows("attempts 1 cancelled", 20)
    assert [receipt.state for receipt in submit.receipts(run)] == ["submitted", "submitted"]
    assert_nothing_left(run)


async def test_a_refusal_leaves_the_review_and_slurms_words(desk: Desk, toy):
    app = MoltApp(StoreSource(desk.home), interval_s=0.5)
    recipe = desk.recipe()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        app.open_form(str(recipe))
        await screen.shows("ctrl+s starts it")
        await screen.press("o", "slash", *"slurm.partition", "enter", "enter", "ctrl+u", *"debgu", "enter", "ctrl+s")
        await screen.shows("did you mean debug?", 30)
        await screen.press("ctrl+s", "escape", "enter", "ctrl+u", *"debug", "enter")
        await screen.press("escape", "slash", *"slurm.reservation", "enter", "enter", "ctrl+u", *"nothing", "enter", "ctrl+s")
        await screen.shows("Slurm refuses the job", 30)
    assert list(desk.home.runs_root.glob("2*")) == []
