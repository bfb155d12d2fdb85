"""Finding recipes, anchoring their files, and the shipped ones being sound."""

from pathlib import Path

import pytest

from engine import recipes
from molt_tui.services.recipes import list_recipes

DEMO = """
[recipe]
title = "Demo"
[actor]
model_name_or_path = "tiny:qwen3"
[data]
prompt_dataset = ["prompts.jsonl", "reasoning-gym:chain_sum"]
[algo.advantage]
is_correction_level = "token"
[train]
agent_path = "agent.py"
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "recipes"
    for task in ("", "sums", "games"):
        (folder / task).mkdir(exist_ok=True)
        (folder / task / "agent.py").write_text("class AgentRunner: pass\n")
        (folder / task / "prompts.jsonl").write_text("{}\n")
    (folder / "demo.toml").write_text(DEMO)
    (folder / "sums" / "moe.toml").write_text(DEMO)
    (folder / "sums" / "small.toml").write_text(DEMO)
    (folder / "games" / "small.toml").write_text(DEMO)
    monkeypatch.setattr(recipes, "shipped_folder", lambda: folder)
    return folder


def test_names_of_shipped_recipes(shipped):
    assert set(recipes.shipped_names()) == {"demo", "moe", "games/small", "sums/small"}
    assert [line.title for line in list_recipes()] == ["Demo"] * 4


@pytest.mark.parametrize("name", ["demo", "moe", "sums/moe", "sums/small"])
def test_a_recipe_is_found_and_its_files_are_anchored(shipped, name):
    recipe, config, problems = recipes.load(name, ["--train.seed", "3"])
    assert problems == []
    assert config.train.agent_path == str(recipe.path.parent / "agent.py") and config.train.seed == 3
    assert config.data.prompt_dataset == (str(recipe.path.parent / "prompts.jsonl"), "reasoning-gym:chain_sum")
    assert config.actor.model_name_or_path == "tiny:qwen3"


def test_a_path_works_and_files_on_the_command_line_are_relative_to_the_working_directory(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my,own.py").write_text("class AgentRunner: pass\n")
    Path("mine.jsonl").write_text("{}\n")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    flags = ["--train.agent_path", "my,own.py", "--data.prompt_dataset", "mine.jsonl, mine.jsonl", "--actor.model_name_or_path",
             "model", "--ckpt.path", "saved"]  # fmt: skip
    recipe, config, problems = recipes.load("recipes/sums/moe.toml", flags)
    assert problems == [] and recipe.path == shipped / "sums" / "moe.toml"
    assert config.train.agent_path == str(tmp_path / "my,own.py")
    assert config.data.prompt_dataset == (str(tmp_path / "mine.jsonl"),) * 2
    assert config.actor.model_name_or_path == str(tmp_path / "model") and config.ckpt.path == str(tmp_path / "saved")
    assert recipes.load("demo", ["--ckpt.path", "none"])[1].ckpt.path is None


def test_unknown_names_get_a_suggestion(shipped):
    assert str(recipes.find_recipe("dmo")[1][0]) == "unknown recipe 'dmo'; did you mean demo?"
    assert "there are demo" in str(recipes.find_recipe("zzzz")[1][0])
    assert "no such file" in str(recipes.find_recipe("gone/x.toml")[1][0])


def test_type_problems_and_broken_rules_come_together(shipped):
    _, config, problems = recipes.load("demo", ["--train.sede", "3", "--reward.clip_range", "2", "1", "--rollout.top_p", "x"])
    assert config is None and {p.flag for p in problems} == {"train.sede", "reward.clip_range", "rollout.top_p"}


def test_a_broken_file_is_one_problem(shipped):
    (shipped / "demo.toml").write_text("[train\n")
    (problem,) = recipes.load("demo", [])[2]
    assert "line 1" in problem.message
    _, _, problems = recipes.load("nope", ["--train.sede", "3"])
    assert len(problems) == 2


def test_every_shipped_recipe_is_sound():
    assert {name: problems for name in recipes.shipped_names() if (problems := recipes.load(name, [])[2])} == {}
