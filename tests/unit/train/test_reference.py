"""The frozen reference: KL in the loss and in the reward, distillation, the controller of the coefficient."""

import math

import numpy as np
import pytest
import torch
from helpers import config, order, rollouts, save_tiny, tiny_model

from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec


@pytest.fixture(scope="module")
def paths(tmp_path_factory, layout):
    folder = tmp_path_factory.mktemp("models")
    return {seed: save_tiny(folder / str(seed), moe=False, seed=seed) for seed in (0, 1)}


def trainer(paths, kl, estimator="reinforce", reference=1, **more) -> Trainer:
    made = Trainer(get=lambda references: references)
    sections = {"algo": {"kl": kl, "advantage": {"estimator": estimator}}, **more}
    made.setup(TrainerSpec(config(**sections), paths[0], reference_path=paths[reference] if reference is not None else None))
    return made


def exact_kl(records, estimate):
    """One value per sampled token, by transformers alone; `estimate` takes log pi - log ref."""
    found = []
    for record in records:
        (segment,) = record.segments
        ids = torch.from_numpy(segment.token_ids.astype(np.int64))[None]
        policy, reference = (
            tiny_model(moe=False, seed=s)(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            for s in (0, 1)
        )
        found.append(estimate(policy - reference).detach().numpy()[segment.loss_mask[1:]])
    return found


def test_rewards_of_tokens_are_the_negative_kl(paths):
    records = rollouts(5, layers=None)
    made = trainer(paths, {"init_coef": 0.5, "estimator": "k3"})
    ordered = order(records)
    measured = made.measure(ordered)
    exact = exact_kl(records, lambda d: torch.exp(-d) - 1 + d)
    for sample, expected in enumerate(exact):
        assert measured[sample].rewards == pytest.approx(-0.5 * np.minimum(expected, 10), abs=1e-4)
    metrics = made.train(ordered).metrics
    assert metrics["loss/kl"] == pytest.approx(np.concatenate(exact).clip(max=10).mean(), rel=1e-4)
    assert metrics["loss/kl_coef"] == 0.5


def test_kl_in_the_loss_pulls_towards_the_reference(paths):
    records = rollouts(6, layers=None)
    made = trainer(paths, {"init_coef": 1.0, "use_loss": True, "estimator": "k3"}, actor={"adam": {"lr": 3e-3}})
    ordered = order(records)
    for sample in ordered.samples:
        sample.advantage = 0.0
    values = [made.train(ordered).metrics["loss/kl"] for _ in range(12)]
    assert values[0] == pytest.approx(
        np.concatenate(exact_kl(records, lambda d: torch.exp(-d) - 1 + d)).clip(max=10).mean(), rel=1e-4
    )
    assert values[-1] < 0.5 * values[0]


def test_against_itself_the_kl_is_zero(paths):
    made = trainer(paths, {"init_coef": 0.1}, reference=0)
    ordered = order(rollouts(4, layers=None))
    assert all(np.abs(m.rewards).max() < 1e-6 for m in made.measure(ordered).values())


def test_against_the_rollout_policy_no_reference_is_needed(paths):
    records = rollouts(4, layers=None)
    made = trainer(paths, {"init_coef": 2.0, "estimator": "k1", "ref": "rollout"}, reference=None)
    measured = made.measure(order(records))
    for sample, record in enumerate(records):
        (segment,) = record.segments
        ours = made.score([segment.token_ids.tolist()])[0][segment.loss_mask[1:]]
        assert measured[sample].rewards == pytest.approx(-2 * (ours - segment.logprobs[segment.loss_mask]), abs=1e-4)


def test_distillation_rewards_tokens_that_the_teacher_prefers(paths):
    records = rollouts(4, layers=None)
    measured = trainer(paths, {}, estimator="on_policy_distill").measure(order(records))
    for sample, expected in enumerate(exact_kl(records, lambda d: d)):
        assert measured[sample].rewards == pytest.approx(-expected, abs=1e-4)


def test_the_coefficient_adapts_and_survives_a_checkpoint(paths, tmp_path):
    kl = {"init_coef": 0.5, "use_loss": True, "target": 1e-6, "horizon": 1024}
    made = trainer(paths, kl, rollout={"batch_size": 512})
    made.train(order(rollouts(4, layers=None)))
    assert made.kl.coef == pytest.approx(0.5 * 1.1)
    made.save(str(tmp_path / "step-000001"))
    fresh = trainer(paths, kl, rollout={"batch_size": 512})
    fresh.load(str(tmp_path / "step-000001"))
    assert fresh.kl.coef == made.kl.coef
    assert fresh.kl.step(math.nan) == {"loss/kl_coef": made.kl.coef}
    assert fresh.kl.coef == made.kl.coef, "a batch that is not finite must not end every later one"


def test_the_reference_replays_the_samplers_experts(tmp_path, layout):
    """With the sampler's experts forced on both, policy and reference of the same weights agree exactly."""
    path = save_tiny(tmp_path / "moe")
    made = Trainer(get=lambda references: references)
    sections = {"algo": {"kl": {"init_coef": 1.0, "estimator": "k1"}}, "train": {"routing_replay": True}}
    made.setup(TrainerSpec(config(**sections), path, reference_path=path))
    measured = made.measure(order(rollouts(4)))
    assert all(np.abs(m.rewards).max() < 1e-6 for m in measured.values())
