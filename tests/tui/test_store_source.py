"""The source over a real database and real run directories: the golden run, hostile text, a played scenario."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from engine.protocol import send_command
from engine.wire import RunDir, append_line, encode_line, write_atomic
from molt_tui.draft import Draft
from molt_tui.scenarios.archive import Scenario, load, parse
from molt_tui.scenarios.player import Player, prepare
from molt_tui.scenarios.recorder import record
from molt_tui.store.home import Home
from molt_tui.tui.store_source import StoreSource
from molt_tui.tui.widgets.streams import LogPanel
from tests.make_healthy import make

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "\x1b[2J\x1b]52;c;aGk=\x07 [red]x[/] \r\n\t\u202e\u200b é 漢"


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path, tmp_path / "runs").create()


@pytest.fixture
def golden(home) -> RunDir:
    target = home.runs_root / "20261130-101502-golden-k3f9"
    shutil.copytree(GOLDEN, target)
    return RunDir(target)


def source_of(home: Home) -> StoreSource:
    source = StoreSource(home)
    source.ingest()
    return source


def test_a_run_as_the_screens_see_it(home, golden):
    source = source_of(home)
    (line,) = source.runs()
    assert (line.state, line.step, line.max_steps, line.attempts) == ("completed", 9, 9, 2)
    assert [x for x, _ in source.trends([line.id])[line.id]] == list(range(1, 10))
    view = source.run(line.id, 100)
    assert view.verdicts[0].rule == "completed"
    assert [x for x, _ in view.curves["reward/mean"]] == list(range(1, 10))
    assert any(event.text.startswith("completed") for event in view.events)


def test_the_step_of_the_heading_is_that_of_the_panels_though_the_status_comes_later(home):
    scenario = load("healthy")
    player = Player(scenario, prepare(scenario, home.runs_root, "r1", now=time.time(), command=[]), 1.0)
    player.write_status(force=True)
    for item in scenario.items:
        if item.action == "events" and item.payload.get("step") == 28:
            break
        player.apply(item)
        if item.action == "events" and item.payload.get("step") == 25:
            player.write_status(force=True)
    source = source_of(home)
    view = source.run("r1", 100)
    assert (view.facts.step, view.newest_step, view.curves["reward/mean"][-1][0]) == (27, 27, 27)
    assert view.version == 27


def test_nothing_that_a_run_wrote_reaches_a_screen_raw(home, golden):
    meta = golden.meta.read_bytes()
    for field in (b'"name":"', b'"recipe":"'):
        meta = meta.replace(field, field + encode_line({"": HOSTILE})[5:-3])
    write_atomic(golden.meta, meta)
    append_line(golden.notes, {"t": 1.0, "who": HOSTILE, "action": "tag", "text": HOSTILE})
    log = golden.attempt(2) / "logs" / "engine.log"
    log.write_bytes(HOSTILE.encode() + b"\xff\xfe\x00\x9b31m")
    source = source_of(home)
    (line,) = source.runs()
    view = source.run(line.id, 100)
    shown = [line.name, line.recipe, *line.tags, view.name, *view.log, *(e.text for e in view.events)]
    assert "\\e[2J" in view.name and "\\e[2J" in view.log[0]
    assert all(character.isprintable() for text in shown for character in text)
    assert "\u202e" not in "".join(shown)


async def test_hostile_text_on_the_real_screens(home, golden, open_app):
    meta = golden.meta.read_bytes().replace(b'"name":"', b'"name":"' + encode_line({"": HOSTILE})[5:-3])
    write_atomic(golden.meta, meta)
    (golden.attempt(2) / "logs" / "engine.log").write_text(HOSTILE)
    async with open_app(source=source_of(home)) as driver:
        assert "\\e[2J" in driver.text()
        await driver.press("enter", "l")
        assert driver.app.screen.query_one(LogPanel).has_focus
        assert "[red]x[/]" in driver.text()
        assert "\x1b" not in driver.text()


def test_the_form_knows_every_flag_and_validates_live(home):
    source = source_of(home)
    form = source.form(Draft("no-such-recipe", changes={"actor.adam.lr": "abc"}))
    fields = {field.flag: field for field in form.fields}
    assert fields["actor.adam.lr"].origin == "yours"
    assert fields["train.max_staleness"].default == "1"
    assert any("--actor.adam.lr: expects a number" in problem for problem in form.problems)
    assert form.command == "molt-tui launch no-such-recipe --actor.adam.lr abc"


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> Scenario:
    """A scenario of 160 steps with made-up numbers."""
    return parse("healthy", record(make(tmp_path_factory.mktemp("made-up")).path, "title", "about", "balanced"))


def play(home: Home, scenario: Scenario, speed: float) -> tuple[RunDir, threading.Thread]:
    run = prepare(scenario, home.runs_root, "20270101-000000-demo-healthy-0000", now=time.time(), command=["molt-tui", "demo"])
    thread = threading.Thread(target=Player(scenario, run, speed).play, daemon=True)
    thread.start()
    return run, thread


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_played_scenario_is_a_run_to_the_end(home, made_up):
    run, thread = play(home, made_up, 2000.0)
    source = StoreSource(home)

    def ended():
        source.ingest()
        return source.runs()[0].state == "completed"

    wait_for(ended)
    thread.join(10)
    view = source.run(run.path.name, 1000)
    assert len(view.curves["reward/mean"]) == 160
    assert view.facts.number("routing/replayed_mismatch_frac") == 0
    assert view.name == "demo-healthy"
    assert any(event.text == "eval 87 % exact at step 160, sums" for event in view.events)
    assert len(list(run.rollouts.glob("1-*.jsonl.gz"))) > 3
    assert view.log


def test_a_played_scenario_pauses_goes_on_and_stops(home, made_up):
    run, thread = play(home, made_up, 1.0)
    source = StoreSource(home)

    def state():
        source.ingest()
        return source.runs()[0].state

    wait_for(lambda: state() == "starting")
    assert source.control(run.path.name, "pause") == "demo-healthy: paused"
    wait_for(lambda: state() == "paused")
    assert source.control(run.path.name, "resume") == "demo-healthy: resumed"
    wait_for(lambda: state() == "running")
    assert source.control(run.path.name, "evaluate") == "demo-healthy refused to evaluate: a recorded run cannot do this"
    send_command(run, "stop")
    thread.join(10)
    assert state() == "cancelled"


def test_the_live_verdict_of_the_healthy_scenario(home):
    scenario = load("healthy")
    _, thread = play(home, scenario, scenario.duration_s / 2)
    source = StoreSource(home)

    def steady():
        source.ingest()
        return source.runs()[0].verdict and source.runs()[0].verdict.rule == scenario.verdict

    wait_for(steady)
    thread.join(20)


def test_whole_curves_are_kept_of_one_run_at_a_time(home, golden):
    shutil.copytree(golden.path, home.runs_root / "copy")
    meta = home.runs_root / "copy" / "meta.json"
    meta.write_text(meta.read_text().replace(golden.path.name, "copy"))
    source = source_of(home)
    ids = [line.id for line in source.runs()]
    assert len(ids) == 2
    views = [source.run(run_id, 100) for run_id in (*ids, *ids)]
    assert views[0].curves["reward/mean"] == views[2].curves["reward/mean"]
    kept = {place[0] for place in source._growing._known} | {place[0] for place in source._curves} | set(source._tails)
    assert kept == {ids[-1]}
    source.runs()
    assert {place[0] for place in source._health._kept} == {ids[-1]}
