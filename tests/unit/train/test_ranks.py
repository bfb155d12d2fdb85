"""Two ranks over gloo do what one rank does."""

import pytest
import torch
from two_ranks import CONFIG, train_all

from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from engine.train.weights import gathered_weights


@pytest.fixture(scope="module")
def runs(two_rank_run, layout):
    single = Trainer(get=lambda references: references)
    single.setup(TrainerSpec(CONFIG, two_rank_run.paths[0]))
    one = train_all(single, ranks=1, budget=1000)
    return one, two_rank_run.results("policy"), single, two_rank_run.folder


def flat(tensors):
    return torch.cat([t.double().flatten() for t in tensors.values()])


def test_gradients_agree(runs):
    one, two, _, _ = runs
    assert one["stepped"] == [True, True, False]
    assert len(one["gradients"]) == 3
    for ours, theirs in zip(two[0]["gradients"], one["gradients"], strict=True):
        assert (flat(ours) - flat(theirs)).norm() / flat(theirs).norm() < 1e-5


def test_metrics_agree_on_all_ranks(runs):
    one, two, _, _ = runs
    for index, expected in enumerate(one["metrics"]):
        first, second = two[0]["metrics"][index], two[1]["metrics"][index]
        assert first == second
        assert first.keys() == expected.keys()
        for key, value in expected.items():
            assert first[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_batches_without_a_token_to_train_take_no_step(runs):
    one, _, _, _ = runs
    skipped = one["metrics"][2]
    assert skipped["optim/skipped"] == 1
    assert skipped["staleness/masked_tokens"] > 0
    assert not {"optim/lr", "optim/grad_norm", "loss/policy", "staleness/mean", "routing/mismatch_frac"} & skipped.keys()


def test_every_traced_sample_is_reported_once(runs):
    one, two, _, _ = runs
    assert sorted(two[0]["traced"][0] + two[1]["traced"][0]) == sorted(one["traced"][0])


def test_weights_and_scores_agree(runs):
    one, two, _, _ = runs
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(two[0]["weights"][name], tensor, atol=1e-5, rtol=1e-4, msg=name)
    for ours, theirs in zip(two[1]["scores"], one["scores"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_a_checkpoint_of_two_ranks_loads_on_one(runs):
    _, two, single, folder = runs
    assert single.load(str(folder / "step-000003")) == b"controller"
    assert single.step == 3
    for name, tensor in gathered_weights(single.policy.lm, torch.float32):
        assert torch.equal(tensor, two[0]["weights"][name]), name
