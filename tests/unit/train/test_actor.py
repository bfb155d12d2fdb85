import numpy as np
import pytest
import torch
from helpers import VOCAB, config, order, rollouts, save_tiny, tiny_model

from engine.metrics import describe
from engine.records import InvariantError
from engine.train.actor import Trainer, policy_settings
from engine.train.plan import TrainerSpec, TrainOrder
from engine.train.weights import gathered_weights


@pytest.fixture(scope="module")
def paths(tmp_path_factory, layout):
    folder = tmp_path_factory.mktemp("models")
    return {moe: save_tiny(folder / str(moe), moe=moe) for moe in (True, False)}


def trainer(path, total_steps=None, **sections) -> tuple[Trainer, dict]:
    made = Trainer(get=lambda references: references)
    return made, made.setup(TrainerSpec(config(**sections), path, total_steps=total_steps))


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return dict(gathered_weights(made.policy.lm, torch.float32))


def test_setup_describes_the_model(paths):
    _, info = trainer(paths[True])
    parameters = sum(p.numel() for p in tiny_model().parameters())
    assert info == {"parameters": parameters, "vocab_size": VOCAB, "num_layers": 2, "moe_layers": [0, 1]}


def test_score_is_the_log_prob_of_each_later_token(paths):
    made, _ = trainer(paths[False], train={"max_tokens_per_gpu": 6})
    sequences = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
    reference = tiny_model(moe=False)
    for sequence, scores in zip(sequences, made.score(sequences), strict=True):
        logp_TV = reference(input_ids=torch.tensor([sequence])).logits[0].log_softmax(-1)
        expected = [logp_TV[t, token].item() for t, token in enumerate(sequence[1:])]
        assert scores.dtype == np.float32
        assert scores == pytest.approx(expected, abs=1e-5)


def test_a_step_reports_known_metrics_and_moves_the_weights(paths):
    made, _ = trainer(paths[True], train={"routing_replay": True})
    before = weights(made)
    report = made.train(order(rollouts(6), trace=True))
    assert report.stepped and all(describe(key) for key in report.metrics)
    assert {"routing/mismatch_frac", "offpolicy/k3_kl", "loss/policy", "optim/grad_norm"} <= report.metrics.keys()
    assert report.metrics["optim/skipped"] == 0
    assert report.seconds.keys() == {"load", "forward_backward", "optim"}
    assert any(not torch.equal(before[n], w) for n, w in weights(made).items())


def test_score_after_a_step_uses_the_new_weights(paths):
    made, _ = trainer(paths[False])
    before = made.score([[1, 2, 3]])[0]
    made.train(order(rollouts(6, layers=None)))
    after = made.score([[1, 2, 3]])[0]
    fresh, _ = trainer(paths[False])
    for name, parameter in fresh.policy.lm.named_parameters():
        parameter.data.copy_(dict(made.policy.lm.named_parameters())[name].data)
    assert not np.array_equal(before, after)
    assert np.array_equal(after, fresh.score([[1, 2, 3]])[0])


def test_traces_line_up_with_their_tokens(paths):
    records = rollouts(3, version=1)
    records[0].segments[0].versions[records[0].segments[0].loss_mask] = 0
    made, _ = trainer(paths[True], train={"routing_replay": True})
    report = made.train(order(records, version=1, max_staleness=0, trace=True))
    by_sample = {t.sample: t for t in report.traces}
    assert sorted(by_sample) == [0, 1, 2]
    for sample, trace in by_sample.items():
        segment = records[sample].segments[0]
        young = segment.loss_mask & (segment.versions >= 1)
        assert trace.logprobs.shape == trace.kept.shape == (len(segment),)
        assert trace.kept.tolist() == young.tolist()
        assert trace.routing_mismatch.shape == (len(segment), 2) and not trace.routing_mismatch[-1].any()
        assert (trace.logprobs[young] < 0).all() and not trace.logprobs[~young].any()


def test_old_policy_is_that_before_the_batch(paths):
    """With two optimizer steps the second compares with the weights before the first."""
    records = rollouts(8)
    made, _ = trainer(paths[True])
    traced = made.train(order(records, per_step=4, trace=True)).traces
    fresh, _ = trainer(paths[True])
    expected = fresh.train(order(records, trace=True)).traces
    for ours, theirs in zip(sorted(traced, key=lambda t: t.sample), sorted(expected, key=lambda t: t.sample), strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_micro_batch_size_does_not_change_the_step(paths):
    results = []
    for budget in (14, 40, 1000):
        made, _ = trainer(paths[True], train={"routing_replay": True}, actor={"adam": {"lr": 1e-3, "eps": 1e-3}})
        report = made.train(order(rollouts(9), budget=budget))
        results.append((report.metrics, weights(made)))
    for metrics, final in results[1:]:
        for key, value in results[0][0].items():
            assert metrics[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key
        for name, tensor in results[0][1].items():
            torch.testing.assert_close(final[name], tensor, atol=1e-6, rtol=1e-5, msg=name)


def test_learning_rate_follows_schedule_and_live_value(paths):
    made, _ = trainer(paths[False], total_steps=4, actor={"adam": {"lr": 1e-2}, "lr_scheduler": "linear",
                                                         "lr_warmup_ratio": 0.25, "min_lr_ratio": 0.0})  # fmt: skip
    rates = []
    for step in range(4):
        ordered = order(rollouts(2, layers=None))
        ordered.live = {"actor.adam.lr": 2e-2} if step == 2 else {}
        rates.append(made.train(ordered).metrics["optim/lr"])
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 0.0])


def test_with_learning_rate_zero_nothing_moves(paths):
    made, _ = trainer(paths[True], actor={"adam": {"lr": 0.0}})
    before = weights(made)
    made.train(order(rollouts(4)))
    assert all(torch.equal(before[n], w) for n, w in weights(made).items())


def test_an_order_that_miscounts_is_refused_before_anything_changes(paths):
    made, _ = trainer(paths[True])
    before = weights(made)
    ordered = order(rollouts(4))
    ordered.optimizer_steps[0].tokens += 1
    with pytest.raises(InvariantError, match="tokens to train"):
        made.train(ordered)
    assert all(torch.equal(before[n], w) for n, w in weights(made).items())


def test_a_schedule_needs_its_end_at_setup(paths):
    with pytest.raises(ValueError, match=r"train\.max_steps"):
        trainer(paths[False], actor={"lr_scheduler": "cosine"})


def test_replay_needs_a_moe_model(paths):
    with pytest.raises(ValueError, match=r"train\.routing_replay"):
        trainer(paths[False], train={"routing_replay": True})


def test_a_single_threshold_is_an_upper_bound_and_the_live_one_wins():
    advantage = {"is_correction_level": "token", "is_correction_gating": "tv", "is_correction_threshold": (0.2,)}
    made = config(algo={"advantage": advantage})
    assert (policy_settings(made).correction.low, policy_settings(made).correction.high) == (-np.inf, 0.2)
    assert policy_settings(made, (0.3,)).correction.high == 0.3


def test_a_batch_of_which_nothing_is_young_enough_is_survived(paths):
    made, _ = trainer(paths[True])
    before = weights(made)
    report = made.train(TrainOrder(version=3, max_staleness=0, samples=[], optimizer_steps=[]))
    assert (report.stepped, report.metrics) == (False, {"optim/skipped": 1.0})
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(made).items())


def test_frozen_routers_stay_and_survive_a_checkpoint(paths, tmp_path):
    made, _ = trainer(paths[True], actor={"freeze_moe_router": True, "adam": {"lr": 1e-2}}, train={"routing_replay": True})
    before = weights(made)
    made.train(order(rollouts(6)))
    made.save(str(tmp_path / "step-000001"))
    assert made.load(str(tmp_path / "step-000001")) == b""
    moved = {name for name, tensor in weights(made).items() if not torch.equal(before[name], tensor)}
    assert moved and before.keys() - moved == {name for name in before if name.endswith("mlp.gate.weight")}
