"""A new run from an old one's settings and agent, changed by flags; and what a machine without GPUs refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.flags import load_run_toml, resolve
from molt_tui.errors import Refused
from molt_tui.services import launch, machine, runs
from molt_tui.services.sweep import parse_axis
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from tests.unit.conftest import until


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "runs").create()


def finished(home, recipe):
    run_id = launch.launch(launch.make_plan(home, str(recipe), ["--actor.adam.lr", "0.5"], name="finishes"))[0]

    def look():
        runs.refresh(store)
        return runs.get_run(store, run_id)

    with open_store(home) as store:
        until(lambda: look().final)
        return look()


def test_the_old_settings_and_agent_with_changes(home, recipe, fake_engine):
    old = finished(home, recipe)
    Path(recipe).parent.joinpath("sums.py").write_text("this is not the agent of the old run any more (")
    plan = launch.make_plan(home, old.id, ["--train.max_steps=7"], parent=old, axes=[parse_axis("train.seed=5,6")])
    assert [run.name for run in plan.runs] == ["finishes-seed=5", "finishes-seed=6"]
    assert all((r.config.actor.adam.lr, r.config.train.max_steps) == (0.5, 7) for r in plan.runs)
    new = launch.prepare(plan, plan.runs[0], plan.runs[0].config)
    meta = json.loads(new.meta.read_text())
    assert (meta["parent"], meta["recipe"], meta["group"]) == (old.id, old.recipe, "finishes")
    assert meta["command"] == ["molt-tui", "relaunch", old.id, "--train.max_steps=7", "--train.seed=5"]
    assert load_run_toml(new.run_toml).train.seed == 5
    assert (new.agent / "sums.py").read_text() == (old.directory.agent / "sums.py").read_text()


def test_gpus_are_counted_without_torch(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    count = machine.gpu_count
    assert count(tmp_path, {}) == 3
    assert count(tmp_path, {"CUDA_VISIBLE_DEVICES": "0,2"}) == 2
    assert count(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == count(tmp_path, {"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert count(tmp_path / "nothing", {}) == 0


def test_a_recipe_for_more_gpus_than_there_are_is_refused_before_anything_is_made(home, monkeypatch):
    monkeypatch.setattr(machine, "gpu_count", lambda: 4)
    plan = launch.make_plan(home, "qwen3-4b-math", [])
    with pytest.raises(Refused, match=r"needs 8 GPUs .*, this machine has 4: launch it on Slurm"):
        launch.launch(plan)
    assert list(home.runs_root.iterdir()) == []
    monkeypatch.setattr(machine, "gpu_count", lambda: 8)
    assert machine.misfit(plan.runs[0].config) is None
    assert machine.misfit(resolve({}, {})[0]) is None
