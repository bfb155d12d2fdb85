"""Whatever a person gives as a path, and whatever lies there: a problem in words, never a traceback."""

import pytest

from engine.recipes import find_recipe, load
from molt_tui.slurm.architecture import UnknownModel
from molt_tui.slurm.architecture import find as architecture_of

PATHS = ["data.prompt_dataset", "train.agent_path", "actor.model_name_or_path", "ckpt.path", "eval.dataset"]


@pytest.mark.parametrize("value", ["a" * 6000, "~nobody-of-this-name/x", "a\x00b", "\udcff", "x/" * 3000, "\x1b[31m\n"])
def test_any_text_in_place_of_a_path_is_a_problem_and_no_crash(value):
    assert find_recipe(value)[0] is None
    for flag in PATHS:
        load("demo", [f"--{flag}={value}"])


@pytest.mark.parametrize("text", ["[1]", '{"text_config": 5}', "[" * 100_000, "{", '{"hidden_size": 1e400, "vocab_size": {}}'])
def test_any_text_in_place_of_a_model_configuration_is_taken(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    load("demo", [f"--actor.model_name_or_path={tmp_path}", "--train.routing_replay=true"])
    with pytest.raises(UnknownModel):
        architecture_of(str(tmp_path))


@pytest.mark.parametrize("code", ["(" * 100_000, "-" * 100_000 + "1", "x = " + "[" * 50_000, "\x00"])
def test_an_agent_nested_too_deep_is_a_problem(tmp_path, code):
    (tmp_path / "agent.py").write_text(code)
    problems = load("demo", [f"--train.agent_path={tmp_path / 'agent.py'}"])[2]
    assert any("agent_path" in problem.flag for problem in problems)
