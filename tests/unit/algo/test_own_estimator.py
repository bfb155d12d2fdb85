"""docs/your-own-estimator.md, followed word by word; the e2e tests carry out its last command."""

import re
import sys
from pathlib import Path

import pytest

from engine import batch, recipes, rundir
from engine.__main__ import main
from engine.agents.load import AgentError
from engine.algo.advantage import ESTIMATORS
from engine.batch import load_own_estimator, prepare
from engine.flags import load_run_toml
from engine.rollout.pool import Batch
from engine.rollout.transport import FinishedGroup, Prompt, RolloutSummary, SegmentSummary

PAGE = Path(__file__).parents[3] / "docs/your-own-estimator.md"


@pytest.fixture
def followed(tmp_path, monkeypatch) -> list[list[str]]:
    """The files of the page in the working directory; returns the words of its commands."""
    text = PAGE.read_text()
    blocks = re.findall(r"`(\w+\.py)` (?:(?!```).)*```python\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["my_estimator.py", "test_my_estimator.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(batch, "ESTIMATORS", dict(ESTIMATORS))
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line.split() for line in commands.splitlines()]


def test_its_own_test_passes(followed):
    namespace: dict = {}
    exec(Path("test_my_estimator.py").read_text(), namespace)
    namespace["test_by_hand"]()


def test_its_commands_use_the_file(followed, tmp_path, capsys):
    check, run = followed
    assert check[:3] == run[:3] == ["python", "-m", "engine"]
    assert main(check[3:]) == 0 and capsys.readouterr().out == "ok\n"
    recipe, config, problems = recipes.load(run[4], run[5:])
    assert problems == []
    made = rundir.prepare_run(tmp_path / "runs", config, recipe)
    kept = load_run_toml(made.run_toml)
    copy = made.path / kept.algo.advantage.estimator_path
    assert copy == made.agent / "estimator/my_estimator.py"
    Path("my_estimator.py").write_text("broken")
    load_own_estimator(copy)
    assert advantages(kept) == [0.0, -1.0, 4.0]


def advantages(config) -> list[float]:
    """Advantages of three rollouts of one prompt with rewards 1, 0 and 5."""
    segment = SegmentSummary(4, 2, {0: 2})
    rollouts = [RolloutSummary(f"r{i}", r, r, 1, False, [segment]) for i, r in enumerate([1.0, 0.0, 5.0])]
    group = FinishedGroup("g", Prompt("g", "g"), rollouts, None)
    return prepare(Batch(0, [group], {}), 0, config).advantages


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("estimator = 3", "must export a function"),
        ("def estimator(inputs): return inputs.rewards_R", r"shape \(2, 2\), not \(2,\)"),
        ("def estimator(inputs): return inputs.reward", "failed on two rollouts of two tokens: AttributeError"),
        ("import no_such_module", "importing own.py failed"),
    ],
)
def test_an_unusable_file_is_one_clear_line(tmp_path, monkeypatch, code, message):
    monkeypatch.setattr(batch, "ESTIMATORS", dict(ESTIMATORS))
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(AgentError, match=message) as error:
        load_own_estimator(tmp_path / "own.py")
    assert str(error.value).startswith("algo.advantage.estimator_path") and "\n" not in str(error.value)
