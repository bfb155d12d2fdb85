"""The draft of a launch: fields, problems, command; differences from a past run; a launch happens once."""

from __future__ import annotations

import errno
import json
import shlex
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.flags import resolve
from molt_tui.draft import Draft
from molt_tui.errors import Refused
from molt_tui.services import differences, drafts, launch, once
from molt_tui.services.once import only_once
from molt_tui.store.home import Home


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "runs").create()


def problems(home, draft):
    return [str(p) for p in drafts.examine(home, draft).problems]


def value_of(examined, flag):
    (found,) = [f for f in examined.fields if f.flag == flag]
    return found


def test_every_field_knows_whose_value_it_has(home):
    examined = drafts.examine(home, Draft("demo"))
    assert value_of(examined, "actor.adam.lr").origin == "recipe"
    assert value_of(examined, "rollout.temperature").origin == "default"
    agent = value_of(examined, "train.agent_path")
    assert drafts.typed(agent.flag, agent.value, examined.folder) == "sort_digits/agent.py"
    assert examined.problems == () and len(examined.plan.runs) == 1


def test_a_local_launch_without_an_engine_is_refused_while_it_is_filled_in(home, monkeypatch):
    monkeypatch.setattr(launch, "ENGINE_MODULES", ("no_such_module",))
    monkeypatch.delenv("MOLT_TUI_ENGINE_PYTHON", raising=False)
    assert "no engine" in problems(home, Draft("demo"))[-1] and drafts.examine(home, Draft("demo")).plan is None
    (home.path / "site.toml").write_text('runs_root = "/scratch/r"\n')
    monkeypatch.setattr(drafts, "has_slurm", lambda: True)
    assert problems(home, Draft("demo", "slurm"))[0].startswith("--slurm.python: this environment has no engine")
    for flag in ("slurm.python", "slurm.container"):
        assert problems(home, Draft("demo", "slurm", changes={flag: "/opt/engine"})) == []
    monkeypatch.setenv("MOLT_TUI_ENGINE_PYTHON", "/usr/bin/python3")
    assert problems(home, Draft("demo")) == []


def test_the_sites_defaults_count_on_slurm_only(home, monkeypatch):
    (home.path / "site.toml").write_text('runs_root = "/scratch/r"\n[slurm]\npartition = "gpu"\n')
    monkeypatch.setattr(drafts, "has_slurm", lambda: True)
    assert value_of(drafts.examine(home, Draft("demo")), "slurm.partition").origin == "default"
    partition = value_of(drafts.examine(home, Draft("demo", "slurm")), "slurm.partition")
    assert (partition.value, partition.origin) == ("gpu", "site")


def test_every_problem_at_once_each_on_its_flag(home):
    draft = Draft("demo", changes={"actor.adam.lr": "abc", "train.max_staleness": "99"}, seeds="x", sweeps={"train.seed": "1..0"})
    assert problems(home, draft)[0] == "run seeds expects a whole number from 1 to 64, got 'x'"
    assert any("--train.seed: a range goes from a smaller" in line for line in problems(home, draft))
    found = problems(home, replace(draft, seeds="1", sweeps={}))
    assert (
        len(found) == 2 and "--actor.adam.lr" in found[0] and "--train.max_staleness: expects an integer from 0 to 64" in found[1]
    )


def test_what_this_machine_cannot_do_is_a_problem_of_the_form(home, monkeypatch):
    monkeypatch.setattr("molt_tui.services.machine.gpu_count", lambda: 0)
    assert "needs 8 GPUs" in problems(home, Draft("qwen3-4b-math"))[0]
    monkeypatch.setattr(drafts, "has_slurm", lambda: False)
    found = problems(home, Draft("qwen3-4b-math", "slurm"))
    assert "sbatch is not on the path" in found[0]
    (home.path / "site.toml").write_text("nonsense = 1\n")
    assert "unknown key 'nonsense'" in problems(home, Draft("demo", "slurm"))[0]


def test_names_of_files_are_meant_from_the_recipe_when_they_are_only_there(home, recipe):
    (recipe.parent / "other.py").write_text("class AgentRunner: pass\n")
    draft = Draft(str(recipe), changes={"train.agent_path": "other.py"})
    examined = drafts.examine(home, draft)
    assert examined.problems == ()
    assert examined.plan.runs[0].config.train.agent_path == str(recipe.parent / "other.py")
    assert str(recipe.parent / "other.py") in drafts.command(draft, examined.folder)


@pytest.mark.parametrize("entries", [("--mail-type=END", "--nice=5"), ("echo a, b",), ("a 'quoted' word", "b")])
def test_a_list_of_texts_is_typed_and_read_back(entries):
    text = drafts.typed("slurm.setup", entries)
    words = drafts.words_of(Draft("demo", changes={"slurm.setup": text}), Path())
    assert [w.removeprefix("--slurm.setup=") for w in words] == list(entries)


def test_an_open_quote_is_no_traceback(home):
    assert drafts.words_of(Draft("demo", changes={"slurm.setup": "'open"}), Path()) == ["--slurm.setup='open"]


DRAFTS = [
    Draft("demo", changes={"actor.adam.lr": "1e-4"}, sweeps={"train.seed": "1,2"}, name="two words", group="g"),
    Draft("demo", seeds="3", sweeps={"actor.adam.lr": "log:1e-6..1e-4"}, samples="4"),
    Draft("demo", changes={"slurm.partition": "none", "actor.adam.betas": "0.9,0.99"}),
]


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_command_does_the_same(home, draft, monkeypatch):
    """The command line that the form shows makes the very same plan."""
    from molt_tui.cli import main

    monkeypatch.setenv("MOLT_TUI_HOME", str(home.path))
    examined = drafts.examine(home, draft)
    shown = shlex.split(drafts.command(draft, examined.folder))
    seen = []
    monkeypatch.setattr("molt_tui.services.launch.launch", lambda plan, say: seen.append(plan) or ["x"])
    assert main(shown[1:]) == 0
    assert [(r.name, r.config) for r in seen[0].runs] == [(r.name, r.config) for r in examined.plan.runs]
    assert seen[0].group == examined.plan.group


def tree(**flags):
    return resolve({}, {name.replace("__", "."): [value] for name, value in flags.items()})[0]


@given(st.dictionaries(st.sampled_from(["actor.adam.lr", "train.max_staleness", "rollout.temperature"]), st.integers(2, 60)))
def test_the_difference_is_what_was_changed(changes):
    before = tree(train__agent_path="a.py")
    after = resolve({}, {flag: [str(value)] for flag, value in changes.items()})[0]
    found = {c.flag: (c.before, c.after) for c in differences.settings(before, after)}
    assert set(found) == set(changes)
    assert all(float(new) == changes[flag] and old != new for flag, (old, new) in found.items())


def test_agents_are_compared_by_their_code(tmp_path):
    old, new = tmp_path / "a.py", tmp_path / "b.py"
    old.write_text("x = 1\ny = 2\n")
    new.write_text("x = 1\ny = 3\nz = 4\n")
    assert differences.agent_code(old, new) == "b.py: 2 lines added, 1 removed"
    assert differences.agent_code(old, old) == ""
    assert "cannot be compared" in differences.agent_code(tmp_path / "gone.py", new)


def test_the_script_of_a_past_run_reads_as_the_next_one(home, recipe):
    plan = launch.make_plan(home, str(recipe), [])
    run = launch.prepare(plan, plan.runs[0], plan.runs[0].config, "alps")
    (run.path / "slurm").mkdir()
    text = f"#SBATCH --comment=molt:{run.path.name}.3\nexport MOLT_RUN={run.path}\n#SBATCH --nodes=1\n"
    (run.path / "slurm" / "batch.sh").write_text(text)
    lines = differences.past_script(run.path, home.runs_root)
    assert lines[:2] == ["#SBATCH --comment=molt:RUN.1", f"export MOLT_RUN={home.runs_root}/RUN"]
    assert differences.lines(lines, lines) == []
    assert "+#SBATCH --nodes=2" in differences.lines(lines, [*lines[:2], "#SBATCH --nodes=2"])
    assert differences.past_script(home.path, home.runs_root) == []


def test_the_same_launch_twice_is_refused(tmp_path):
    with only_once(tmp_path, {"recipe": "demo"}) as started:
        with pytest.raises(Refused, match="being started right now"), only_once(tmp_path, {"recipe": "demo"}):
            pass
        with only_once(tmp_path, {"recipe": "another"}):
            pass
        started.append("run-1")
    with pytest.raises(Refused, match="was started 0 s ago as run-1"), only_once(tmp_path, {"recipe": "demo"}):
        pass


def test_a_launch_that_began_has_not_failed_because_its_receipt_cannot_be_written(tmp_path, monkeypatch):
    def full(path, state, runs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with only_once(tmp_path, "x") as started:
        monkeypatch.setattr(once, "_write", full)
        started.append("run-1")
    with pytest.raises(Refused, match="being started right now"), only_once(tmp_path, "x"):
        pass


def test_a_launch_that_failed_or_whose_program_died_can_be_tried_again(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="no engine"), only_once(tmp_path, "x"):
        raise Refused("no engine")
    with only_once(tmp_path, "x") as started:
        started.append("run-1")
    monkeypatch.setattr(once, "FRESH_S", 0.0)
    with only_once(tmp_path, "x"):
        (claim,) = [p for p in tmp_path.glob("*.json")]
        record = json.loads(claim.read_text())
        claim.write_text(json.dumps(record | {"pid": 2**22 + 1}))  # no such process
        with only_once(tmp_path, "x"):
            pass
    claim.write_text("{broken")
    with only_once(tmp_path, "x"):
        pass
    claim.write_text(json.dumps({"state": "starting", "host": "elsewhere", "t": time.time()}))
    with pytest.raises(Refused, match="right now"), only_once(tmp_path, "x"):
        pass


@pytest.mark.parametrize(
    "claim", ['{"state":"started","t":1e400,"runs":5}', '{"state":"started","t":9e9,"runs":{}}', "[" * 100_000, "1"]
)
def test_a_damaged_receipt_stops_no_launch(tmp_path, claim):
    with only_once(tmp_path, {"a": 1}) as started:
        started.append("one")
    (path,) = tmp_path.glob("*.json")
    path.write_text(claim)
    with only_once(tmp_path, {"a": 1}) as started:
        started.append("two")
