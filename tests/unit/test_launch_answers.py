"""What the launch screens are told, over the real services: review against a past run, one launch only, groups, relaunch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from molt_tui.draft import Draft
from molt_tui.errors import MoltError, Refused
from molt_tui.services import drafts, machine, runs
from molt_tui.slurm.memory import Estimate
from molt_tui.store.home import Home
from molt_tui.tui.store_source import StoreSource
from tests.unit.conftest import until


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "runs").create()


@pytest.fixture
def source(home):
    return StoreSource(home)


def ended(source, *ids):
    def all_final():
        source.ingest()
        return all(runs.get_run(source.store, one).final for one in ids)

    until(all_final)


def test_a_launch_and_its_review_against_the_last_run(source, recipe, fake_engine):
    first = Draft(str(recipe), name="finishes", changes={"actor.adam.lr": "0.5"})
    assert source.review(first, None).against is None
    started = source.launch(first)
    ended(source, *started.ids)
    (recipe.parent / "sums.py").write_text("import math\nclass AgentRunner: pass\n")
    review = source.review(replace(first, changes={"train.max_steps": "7"}), None)
    assert review.against.id == started.ids[0]
    assert [(flag, after) for flag, _, after in review.changes] == [("actor.adam.lr", "1e-06"), ("train.max_steps", "7")]
    assert review.agent == "sums.py: 1 lines added, 0 removed" and review.script == ()
    assert [past.id for past in source.past_runs(first)] == [started.ids[0]]


def test_two_forms_at_once_launch_one_run(source, recipe, fake_engine):
    draft = Draft(str(recipe), name="finishes")

    def press(_):
        try:
            return source.launch(draft).ids
        except Refused as refusal:
            return str(refusal)

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(press, range(3)))
    done = [a for a in answers if isinstance(a, tuple)]
    assert len(done) == 1 and len(list(source.home.runs_root.glob("2*"))) == 1
    assert all("being started right now" in a or "was started" in a for a in answers if isinstance(a, str))
    ended(source, *done[0])


def test_a_sweep_is_one_group_and_r_begins_from_a_run(source, recipe, fake_engine):
    ids = source.launch(Draft(str(recipe), name="finishes", sweeps={"train.max_steps": "3,4"})).ids
    ended(source, *ids)
    found = [runs.get_run(source.store, one) for one in ids]
    assert {run.group for run in found} == {"finishes"}
    assert [r.name for r in found] == ["finishes-max_steps=3", "finishes-max_steps=4"]
    draft = source.first_draft("", ids[1])
    assert (draft.parent, draft.on) == (ids[1], "local")
    form = source.form(draft)
    assert next(f for f in form.fields if f.flag == "train.max_steps").value == "4"
    (again,) = source.launch(replace(draft, changes={"train.seed": "9"}, name="finishes")).ids
    meta = json.loads(runs.RunDir(source.home.runs_root / again).meta.read_text())
    assert meta["parent"] == ids[1]
    ended(source, again)


def test_the_review_on_slurm_has_script_and_memory(source, home, monkeypatch):
    (home.path / "site.toml").write_text('runs_root = "/scratch/r"\n[slurm]\npartition = "gpu"\n')
    monkeypatch.setattr(drafts, "has_slurm", lambda: True)
    draft = Draft("qwen3-4b-math", "slurm", {"slurm.gpu_type": "h100", "slurm.python": "/opt/py"})
    monkeypatch.setattr(drafts, "has_slurm", lambda: False)
    form = source.form(draft)
    assert "sbatch is not on the path" in form.problems[0] and form.reviewable and form.runs == 1
    assert not source.form(replace(draft, changes={"slurm.nodes": "x"})).reviewable
    review = source.review(draft, None)
    assert "#SBATCH --partition=gpu" in review.script and "#SBATCH --gres=gpu:h100:8" in review.script
    assert any(part == "Adam" for _, part, _, _ in review.memory) and "fits (estimate)" in review.memory_words[0]
    monkeypatch.setattr(Estimate, "trainer_fits", property(lambda self: False))
    assert "does NOT fit" in source.review(draft, None).memory_words[0]


def test_what_cannot_be_launched_is_refused_in_words(source, recipe):
    with pytest.raises(Refused, match="expects a number"):
        source.launch(Draft(str(recipe), changes={"actor.adam.lr": "x"}))
    with pytest.raises(MoltError, match="no run"):
        source.first_draft("", "20000101-000000-gone-0000")
    source.read_only = True
    form = source.form(Draft(str(recipe)))
    assert form.problems[0].startswith("read-only") and form.reviewable
    assert "molt-tui launch" in source.review(Draft(str(recipe)), None).command
    with pytest.raises(Refused, match="read-only"):
        source.launch(Draft(str(recipe)))


def test_a_review_warns_of_runs_that_start_at_once_here(source, recipe, monkeypatch):
    monkeypatch.setattr(machine, "core_count", lambda: 2)
    assert source.review(Draft(str(recipe), seeds="3"), None).warning == "3 runs start at once on this machine's 2 cores"
    assert source.review(Draft(str(recipe)), None).warning == ""
    assert source.review(Draft(str(recipe), "slurm", seeds="3"), None).warning == ""
