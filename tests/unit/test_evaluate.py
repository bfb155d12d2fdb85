"""What an evaluation reports, and the best checkpoint."""

import math

import pytest

from engine.checkpoints import Checkpoints
from engine.config import Config
from engine.evaluate import pass_at, summarise
from engine.metrics import describe
from engine.rollout.transport import FinishedGroup, Prompt, RolloutSummary, SegmentSummary
from engine.train.checkpoint import COMPLETE, complete_checkpoints
from engine.wire import RunDir


def group(*scores, failed=0):
    made = [RolloutSummary(str(i), s, s, 1, False, [SegmentSummary(4, 2, {0: 2})]) for i, s in enumerate(scores)]
    return FinishedGroup("g", Prompt("p", "?"), made, None, failed=failed)


def test_pass_at_k_by_hand():
    # Four tries, one right: 1 - C(3, 1) / C(4, 1) = 1/4, 1 - C(3, 2) / C(4, 2) = 1/2, and 1. The other prompt: never.
    found = pass_at([group(1.0, 0.0, 0.5, failed=1), group(0.0, 0.0, 0.0, 0.0)])
    assert found == {"pass_at_1": 0.125, "pass_at_2": 0.25, "pass_at_4": 0.5}
    assert all(describe(f"eval/sums/{key}").unit == "share" for key in found)


def test_a_single_try_has_no_pass_at_k():
    assert pass_at([group(1.0), group(0.0)]) == {}


def test_without_scores_none_is_reported():
    found = summarise([group(math.nan, math.nan)], 3)
    assert found.keys() == {"failed", "version", "rollouts", "response_len_mean", "truncated_frac"}


class FakeTrainer:
    async def save(self, path, payload, hf):
        RunDir(path).path.mkdir(parents=True)
        (RunDir(path).path / COMPLETE).touch()


class FakePool:
    def state_dict(self):
        return {"finished": []}


@pytest.mark.parametrize("again", [False, True])
async def test_only_a_better_evaluation_replaces_the_best(tmp_path, again):
    class Cluster:
        trainers = (FakeTrainer(),)

    def checkpoints():
        return Checkpoints(RunDir(tmp_path), Config())

    kept = checkpoints()
    saved = []
    for step, score in ((1, 0.5), (2, 0.4), (3, 0.7), (4, 0.7)):
        kept = checkpoints() if again else kept  # the score to beat survives a restart
        if await kept.save_best(Cluster, FakePool(), step, step, None, score):
            saved.append(step)
    assert saved == [1, 3]
    assert [p.name for p in complete_checkpoints(kept.folder / "best")] == ["step-000003"]
    assert complete_checkpoints(kept.folder) == []
