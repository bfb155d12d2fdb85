"""Every shipped scenario, played at full speed into a run directory: its end shows the verdict that it promises."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise

import pytest

from engine.wire import RunDir
from molt_tui.errors import Refused
from molt_tui.scenarios.archive import Scenario, load, names, parse
from molt_tui.scenarios.player import Player, prepare
from molt_tui.services.health import UNSEEN, HealthReader, timeline
from molt_tui.services.launch import start_next_attempt
from molt_tui.services.runs import list_runs, observed
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from molt_tui.verdict import ACTIVE, judge
from tests.make_scenarios import PATHOLOGIES, make

ENDS = {"timeout", "preempted", "cancelled"}  # states of their own; every other recorded end is a failure
WITHOUT_METRICS = {"no-beat", "stuck", "time-limit", "disk-full", "out-of-memory", *ENDS}
QUIET_S = 900.0  # long enough for every rule that waits for something


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path, tmp_path / "runs").create()


def new_run(home: Home, scenario: Scenario) -> RunDir:
    name = f"20270101-000000-demo-{scenario.name}"
    return prepare(scenario, home.runs_root, name, now=time.time(), command=["molt-tui", "demo"])


def verdicts(home: Home, later: float = 0.0):
    """(run, verdicts) of the only run, as a reader sees them `later` seconds from now."""
    with open_store(home) as store:
        ingest(store, clock=lambda: time.time() + later)
        (run,) = list_runs(store)
        seen = observed(store, run).get(run.id, UNSEEN)
        return run, judge(HealthReader().facts(store, run, seen, time.time() + later))


def play_out(home: Home, scenario: Scenario) -> None:
    """Everything that the recording has, at once; the reader looks twice, so that it sees the beat move."""
    player = Player(scenario, new_run(home, scenario), float("inf"))
    player.played_s = scenario.duration_s
    for item in scenario.items:
        player.apply(item)
    player.write_status(force=True)
    verdicts(home)
    player.write_status(force=True)
    if scenario.verdict == "stuck":
        player.clock = lambda: time.time() + QUIET_S
        player.write_status(force=True)


def at_every_step(home: Home, steps: range):
    with open_store(home) as store:
        (run,) = list_runs(store)
        reader = HealthReader()
        for step in steps:
            yield step, judge(reader.facts(store, run, UNSEEN, 0.0, at=step))


@pytest.mark.parametrize("name", [n for n in names() if load(n).ending != "lost"])
def test_a_scenario_is_quiet_before_its_onset_and_ends_with_its_verdict(home, name):
    scenario = load(name)
    play_out(home, scenario)
    run, found = verdicts(home)
    if scenario.ending == "silent":
        run, found = verdicts(home, later=QUIET_S)
    if name == "healthy":
        assert (run.state, [v.rule for v in found]) == ("completed", ["completed"])
        return
    assert found[0].rule == scenario.verdict, found
    ended = scenario.verdict if scenario.verdict in ENDS else "failed"
    assert run.state == (ended if scenario.ending == "exit" else "running")
    assert found[0].action and found[0].healthy
    early = [v for _, found in at_every_step(home, range(1, scenario.onset, 4)) for v in found if v.alarming]
    assert not early
    steps = [item.payload["step"] for item in scenario.items if item.action == "events" and item.payload["kind"] == "metrics"]
    last = next(at_every_step(home, range(max(steps), max(steps) + 1)))[1]
    assert name in WITHOUT_METRICS or last[0].rule == scenario.verdict


def test_a_run_that_died_without_a_word_is_lost(home):
    run = new_run(home, load("lost"))
    command = [sys.executable, "-m", "molt_tui.scenarios.player", "lost", str(run.path), "--speed", "1e9"]
    assert subprocess.run(command, timeout=60).returncode == 1
    _, found = verdicts(home)
    assert found[0].rule == "lost"
    assert "no checkpoint was saved" in found[0].action


def test_the_timeline_says_since_when(home):
    scenario = load("replay-leaks")
    play_out(home, scenario)
    with open_store(home) as store:
        (run,) = list_runs(store)
        found = timeline(store, run, HealthReader())
    assert found.steps[-1] == 96 and len(found.steps) <= 60
    assert list(found.levels) == ["replay-leaks"]
    ill = [step for step, level in zip(found.steps, found.levels["replay-leaks"]) if level]
    assert ill == [step for step in found.steps if step >= scenario.onset]


def test_the_healthy_run_raises_no_alert_at_any_step_and_its_headline_is_steady(home):
    scenario = load("healthy")
    play_out(home, scenario)
    found = dict(at_every_step(home, range(1, 151)))
    assert not {step: v for step, verdicts in found.items() for v in verdicts if v.alarming}
    heads = [verdicts[0].rule for verdicts in found.values()]
    assert sum(a != b for a, b in pairwise(heads)) <= 2, heads
    assert set(heads[5:]) == {"trainer-bound"}


def test_the_files_are_what_the_module_makes():
    source = load("healthy")
    assert {*PATHOLOGIES, "healthy"} <= set(names())
    for name, spec in list(PATHOLOGIES.items())[:3]:
        assert load(name).title == spec.title
        shipped, made = load(name), parse(name, make(name, source))
        assert str(made.items) == str(shipped.items)
        assert made.files == shipped.files


def test_times_are_in_order_and_every_state_is_known():
    for name in names():
        scenario = load(name)
        assert all(a.t <= b.t for a, b in pairwise(scenario.items))
        phases = {i.payload["phase"] for i in scenario.items if i.action == "supervisor" and i.payload["kind"] == "phase"}
        assert phases <= {*ACTIVE, "completed", "failed", *ENDS}


@pytest.mark.parametrize("name", ["equal-rewards", "healthy", "stuck"])
def test_a_recording_that_is_over_shows_its_verdict_as_long_as_it_is_held(home, name):
    scenario, waited = load(name), [0.0]
    player = Player(scenario, new_run(home, scenario), float("inf"), lambda: time.time() + waited[0])
    for item in scenario.items:
        player.apply(item)
    player.hold(0.0)
    waited[0] = QUIET_S
    player.write_status(force=True)
    _, found = verdicts(home)
    assert found[0].rule == ("completed" if name == "healthy" else scenario.verdict)


@pytest.mark.parametrize("name", ["time-limit", "disk-full", *sorted(ENDS)])
def test_a_replay_offers_no_checkpoint_that_it_does_not_have(home, name):
    scenario = load(name)
    Player(scenario, new_run(home, scenario), float("inf")).play(0.0)
    run, found = verdicts(home)
    assert run.last_checkpoint is None and "p goes on" not in found[0].action
    with pytest.raises(Refused, match="no checkpoint"):
        start_next_attempt(run)
