"""GAE's critic: its values, what it learns, and its place in a checkpoint."""

import numpy as np
import pytest
import torch
from helpers import config, order, rollouts, save_tiny

from engine.compat import moe_layers
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec


@pytest.fixture(scope="module")
def path(tmp_path_factory, layout):
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer(path, lr=3e-3) -> Trainer:
    made = Trainer(get=lambda references: references)
    sections = {
        "algo": {"advantage": {"estimator": "gae"}}, "train": {"routing_replay": True},
        "critic": {"adam": {"lr": lr}, "value_clip": 5.0}, "actor": {"gradient_checkpoint": "full"},
    }  # fmt: skip
    made.setup(TrainerSpec(config(**sections), path))
    return made


def with_targets(made, records, value):
    ordered = order(records)
    for sample, found in made.measure(ordered).items():
        ordered.samples[sample].values = found.values
        ordered.samples[sample].returns = np.full_like(found.values, value)
    return ordered


def test_values_start_at_zero_and_approach_their_returns(path):
    made, records = trainer(path), rollouts(5)
    assert all(not m.values.any() and m.rewards is None for m in made.measure(order(records)).values())
    metrics = [made.train(with_targets(made, records, 2.0)).metrics for _ in range(25)]
    assert metrics[0]["loss/value"] == pytest.approx(2.0) and metrics[-1]["loss/value"] < 0.2
    assert metrics[0]["optim/critic_grad_norm"] > 0


def test_micro_batches_do_not_change_the_critic(path):
    found = []
    for budget in (14, 1000):
        made = trainer(path)
        for _ in range(2):
            ordered = with_targets(made, rollouts(6), 1.0)
            ordered.optimizer_steps = order(rollouts(6), budget=budget).optimizer_steps
            made.train(ordered)
        found.append({s: m.values for s, m in made.measure(order(rollouts(6))).items()})
    for sample, values in found[0].items():
        assert values == pytest.approx(found[1][sample], rel=1e-3, abs=1e-4)


def test_resuming_continues_the_critic_exactly(path, tmp_path):
    made, records = trainer(path), rollouts(4)
    made.train(with_targets(made, records, 1.0))
    made.save(str(tmp_path / "step-000001"))
    fresh = trainer(path)
    fresh.load(str(tmp_path / "step-000001"))
    for one in (made, fresh):
        one.train(with_targets(one, records, 1.0))
    ours, theirs = (one.measure(order(records)) for one in (made, fresh))
    assert all(np.array_equal(ours[s].values, theirs[s].values) for s in ours)
    assert all(torch.equal(a, b) for a, b in zip(made.critic.model.parameters(), fresh.critic.model.parameters()))


def test_its_routers_follow_the_sampler_in_every_pass(path):
    made, records = trainer(path), rollouts(3)
    consumed: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for layer in moe_layers(made.critic.model):
        layer.experts.register_forward_pre_hook(lambda _, inputs, k=layer.layer_id: consumed[k].append(inputs[1]))
    made.train(with_targets(made, records, 1.0))
    (batch,) = made._load(order(records))[0]
    ids_NLk = batch.routing.ids_NLk
    reported_N = (ids_NLk >= 0).all(-1).all(-1)
    assert reported_N.sum() == sum(len(r.segments[0]) - 1 for r in records)
    for layer, passes in consumed.items():
        # Values, the forward pass that trains, and its recomputation.
        assert len(passes) == 3
        assert all(torch.equal(ids_Nk[reported_N], ids_NLk[reported_N, layer]) for ids_Nk in passes)
