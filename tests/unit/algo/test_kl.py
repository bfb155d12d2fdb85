import math

import pytest
import torch
from batches import EXTREME_LOGPROBS, assert_close, batches, double, quick
from hypothesis import given
from hypothesis import strategies as st

from engine.algo.kl import adapted_coef, kl_estimate
from engine.algo.loss import Denominators, PolicySettings, finish_policy, policy_objective
from engine.algo.names import KL_ESTIMATORS


@pytest.mark.parametrize(
    ("kind", "by_reference", "expected"),
    [
        # pi = 1/2, ref = 1/4: d = ln 2; and pi = 1/4, ref = 1/2: d = -ln 2.
        ("k1", False, [math.log(2), -math.log(2)]),
        ("k2", False, [math.log(2) ** 2 / 2] * 2),
        ("k3", False, [0.5 - 1 + math.log(2), 2 - 1 - math.log(2)]),
        ("k3", True, [2 - 1 - math.log(2), 0.5 - 1 + math.log(2)]),
    ],
)
def test_by_hand(kind, by_reference, expected):
    policy, reference = double([[math.log(0.5), math.log(0.25)]]), double([[math.log(0.25), math.log(0.5)]])
    assert_close(kl_estimate(policy, reference, kind, by_reference), [expected])


@pytest.mark.parametrize("kind", KL_ESTIMATORS)
@pytest.mark.parametrize("by_reference", [False, True])
def test_the_mean_over_samples_is_the_kl(kind, by_reference):
    # Over a whole vocabulary, weighted with the sampling policy; k2 is right to second order only.
    policy, reference = double([[0.5, 0.3, 0.2]]).log(), double([[0.48, 0.31, 0.21]]).log()
    sampler, other = (reference, policy) if by_reference else (policy, reference)
    exact = float((sampler.exp() * (sampler - other)).sum())
    mean = float((sampler.exp() * kl_estimate(policy, reference, kind, by_reference)).sum())
    sign = -1 if kind == "k1" and by_reference else 1
    assert mean == pytest.approx(sign * exact, rel=0.05 if kind == "k2" else 1e-9)


@quick
@given(batches(logprobs=EXTREME_LOGPROBS), st.sampled_from(KL_ESTIMATORS), st.booleans())
def test_finite_with_finite_gradients(batch, kind, by_reference):
    logprobs = torch.tensor(batch.current, requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor(batch.mu), kind, by_reference)
    estimate.sum().backward()
    assert estimate.isfinite().all() and logprobs.grad.isfinite().all()
    assert kind == "k1" or (estimate >= 0).all()


@quick
@given(batches(), st.sampled_from(["k2", "k3"]), st.booleans(), st.sampled_from(["token-mean", "seq-mean-token-mean"]))
def test_kl_in_the_loss_is_added_as_a_token_mean(batch, kind, to_rollout, aggregation):
    mask = torch.tensor(batch.mask)
    counts = Denominators(max(int(mask.sum()), 1), max(int(mask.any(1).sum()), 1))
    current, reference = double(batch.current).requires_grad_(), double(batch.old)

    def objective(**settings):
        return policy_objective(
            current, double(batch.old), double(batch.mu), double(batch.advantages), mask, None,
            PolicySettings(aggregation=aggregation, **settings), counts, reference,
        )  # fmt: skip

    plain, _ = objective()
    loss, sums = objective(kl_coef=0.3, kl_estimator=kind, kl_to_rollout=to_rollout)
    expected, exact = 0.0, torch.zeros(())
    for s, row in enumerate(batch.mask):
        for t, on in enumerate(row):
            d = current[s, t] - (batch.mu if to_rollout else batch.old)[s][t]
            exact = exact + on * (d * d / 2 if kind == "k2" else torch.exp(d) - 1 - d if to_rollout else torch.exp(-d) - 1 + d)
    expected = plain + 0.3 * exact.clamp_max(10 * mask.sum()) / counts.tokens
    grads = [torch.autograd.grad(x + 0 * current.sum(), current, retain_graph=True)[0] for x in (loss, expected)]
    if all(abs(c - o) < 2 for rows in zip(batch.current, batch.mu, batch.old) for c, m, o in zip(*rows) for o in (m, o)):
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(*grads)
        if mask.any():
            assert finish_policy(sums)["loss/kl"] == pytest.approx(float(exact.detach()) / int(mask.sum()))


def test_a_kl_in_the_loss_needs_its_reference():
    one = double([[-1.0]])
    with pytest.raises(ValueError, match="reference_logprobs_ST"):
        policy_objective(one, None, one, one, torch.ones(1, 1).bool(), None, PolicySettings(kl_coef=0.1), Denominators(1))


def test_the_coefficient_follows_the_target():
    # Twice the target is cut to +0.2: 1 + 0.2 * 100 / 1000. At 0.9 of it: 1 - 0.1 * 0.1. On target nothing moves.
    assert adapted_coef(0.5, 0.2, 0.1, 100, 1000) == pytest.approx(0.5 * 1.02)
    assert adapted_coef(0.5, 0.09, 0.1, 100, 1000) == pytest.approx(0.5 * 0.99)
    assert adapted_coef(0.5, 0.1, 0.1, 100, 1000) == 0.5
    assert adapted_coef(0.5, 0.0, 0.1, 100, 1000) == pytest.approx(0.5 * 0.98)
