"""Launching, commanding, stopping and resuming against a real supervisor and a scripted engine."""

import ast
import errno
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import molt_tui
from molt_tui.errors import Refused
from molt_tui.services import control, launch, logs, metrics, notes, runs
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.liveness import process_alive
from molt_tui.store.runs import supervisor_of
from tests.unit.conftest import until


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "runs").create()


@pytest.fixture
def store(home):
    with open_store(home) as opened:
        yield opened


def look(store, reference="last"):
    runs.refresh(store)
    return runs.find_run(store, reference)


def started(store, home, recipe, name, state="running"):
    run_id = launch.launch(launch.make_plan(home, str(recipe), [], name=name))[0]
    until(lambda: look(store, run_id).state == state)
    return look(store, run_id)


def test_commands_are_answered(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "talks")
    assert control.send(run, "pause").wait(20) == control.Answer(True, "pause done")
    until(lambda: look(store).state == "paused")
    assert control.send(run, "evaluate").wait(20) == control.Answer(False, "eval.dataset is empty")
    said = []
    assert control.stop(run, say=said.append)
    assert said[-1] == "stop done"
    after = look(store)
    assert (after.state, after.step, after.last_checkpoint) == ("cancelled", 1, 1)
    assert process_alive(supervisor_of(after.directory)) is False
    with pytest.raises(Refused, match="is cancelled"):
        control.send(after, "pause")
    answers = [e for e in metrics.events(store, after, kinds=("control",))]
    assert [e["data"]["name"] for e in answers] == ["pause", "evaluate", "stop"] and "@" in answers[0]["data"]["who"]


def test_a_run_whose_disk_is_full_is_stopped_by_signal(store, home, recipe, fake_engine, monkeypatch):
    run = started(store, home, recipe, "talks")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.protocol.send_command", full)
    said = []
    assert control.stop(run, say=said.append)
    assert "No space left on device" in said[0] and "SIGTERM" in said[1]
    assert look(store).state == "cancelled"


def test_going_on_is_offered_only_where_there_is_something_to_go_on_from(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "talks")
    assert control.stop(run)
    after = look(store)
    with pytest.raises(Refused, match="molt-tui resume"):
        control.send(after, "pause")
    with pytest.raises(Refused) as refused:
        control.send(replace(after, last_checkpoint=None), "pause")
    assert "resume" not in str(refused.value)


def test_a_run_that_does_not_answer(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "deaf")
    assert control.send(run, "pause").wait(0.2) is None
    said = []
    assert control.stop(run, command_s=0.2, say=said.append)
    assert any("SIGTERM" in line for line in said)
    assert look(store).state == "cancelled"


def test_killed_run_is_lost_and_resumes_as_the_next_attempt(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "killed")
    os.kill(fake_engine[0].pid, signal.SIGKILL)
    fake_engine[0].wait()
    after = until(lambda: (r := look(store)).state == "lost" and r)
    assert "supervisor is gone" in after.detail
    assert launch.start_next_attempt(after) == 2
    again = until(lambda: (r := look(store)).state == "running" and r)
    assert (again.id, again.attempts) == (run.id, 2)
    until(lambda: [p.attempt for p in (runs.refresh(store), metrics.series(store, again, "reward/mean"))[1]] == [2])
    assert runs.attempts(store, again)[0]["reason"] == "crashed"
    assert control.stop(again)
    assert launch.start_next_attempt(look(store)) == 3


def test_completed_run_is_not_resumed(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "finishes", state="completed")
    with pytest.raises(Refused, match="is completed"):
        launch.start_next_attempt(run)
    assert logs.tail(logs.pick(run).path, 5)[0] == ["attempt 1 ready"]
    kinds = [e["kind"] for e in launch.follow(run.path)]
    assert "metrics" in kinds and kinds.count("phase") == 2


def test_supervisor_is_detached(store, home, recipe, fake_engine):
    started(store, home, recipe, "detached")
    pid = fake_engine[0].pid
    assert os.getsid(pid) == pid and os.getpgid(pid) == pid
    assert {os.readlink(f"/proc/{pid}/fd/{n}") for n in (1, 2)} == {str(look(store).path / "supervisor.log")}


def test_supervisor_that_cannot_start(home, recipe, fake_engine, monkeypatch):
    monkeypatch.setattr("molt_tui.spawn.supervisor_command", lambda python, run: [python, "-c", "raise SystemExit('no luck')"])
    with pytest.raises(Exception, match="ended at once: no luck"):
        launch.launch(launch.make_plan(home, str(recipe), []))


def test_plan_of_seeds_and_refusals(home, recipe, monkeypatch):
    plan = launch.make_plan(home, str(recipe), ["--train.seed", "7", "--actor.adam.lr=0"], seeds=3)
    assert [(r.name, r.settings["train.seed"]) for r in plan.runs] == [("sums-s7", 7), ("sums-s8", 8), ("sums-s9", 9)]
    assert plan.group == "sums" and plan.runs[0].settings["actor.adam.lr"] == 0
    with pytest.raises(Refused, match=r"actor\.adam\.lr"):
        launch.make_plan(home, str(recipe), ["--actor.adam.lrr", "1"])
    monkeypatch.setattr(launch, "ENGINE_MODULES", ("ray", "no_such_module"))
    monkeypatch.delenv("MOLT_TUI_ENGINE_PYTHON", raising=False)
    with pytest.raises(Refused, match="make demo"):
        launch.launch(plan)
    assert not list(home.runs_root.iterdir())
    monkeypatch.setenv("MOLT_TUI_ENGINE_PYTHON", "/no/python")
    with pytest.raises(Exception, match="does not exist"):
        launch.engine_python()


def test_notes_and_tags(store, home, recipe, fake_engine):
    run = started(store, home, recipe, "noted")
    notes.add(store, run, "tag", " moe ")
    notes.add(store, run, "note", "look \x1b[2J here")
    notes.add(store, run, "tag", "keep")
    notes.add(store, run, "untag", "moe")
    assert runs.get_run(store, run.id).tags == ("keep",)
    assert [n["text"] for n in runs.notes(store, run)] == ["moe", "look \x1b[2J here", "keep", "moe"]
    with pytest.raises(Refused, match="needs text"):
        notes.add(store, run, "tag", "  ")


def test_one_module_starts_processes():
    """Everything that molt_tui starts goes through spawn.py, so that one file says how."""
    root = Path(molt_tui.__file__).parent
    starters = {"subprocess", "multiprocessing", "pty"}
    calls = {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp"}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = starters & {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = starters & {(node.module or "").split(".")[0]}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                found = calls & {node.attr}
            else:
                continue
            assert not found or path == root / "spawn.py", f"{path.relative_to(root)} uses {found}"
