import math
from dataclasses import replace

import pytest
import slow_algo
import torch
from batches import EXTREME_LOGPROBS, assert_close, batches, double, quick
from hypothesis import given
from hypothesis import strategies as st
from test_correction import RULES

from engine.algo.correction import CorrectionRule
from engine.algo.loss import AGGREGATIONS, Denominators, PolicySettings, finish_policy, policy_objective
from engine.algo.sums import add_sums

COMMON = dict(
    clip_low=st.sampled_from([0.1, 0.2]),
    entropy_coef=st.sampled_from([None, 0.0, 0.1]),
    correction=st.sampled_from(RULES),
    aggregation=st.sampled_from(sorted(AGGREGATIONS)),
)
SETTINGS = st.one_of(
    st.builds(PolicySettings, clip_high=st.sampled_from([0.2, 0.28]), dual_clip=st.sampled_from([None, 1.7, 3.0]), **COMMON),
    st.builds(PolicySettings, loss_mode=st.just("gspo"), clip_high=st.sampled_from([0.2, 0.28]), **COMMON),
    st.builds(PolicySettings, loss_mode=st.just("cispo"), clip_high=st.sampled_from([1.0, 2.0]), **COMMON),
)


def ppo_of(ratio, advantage, **settings):
    """Loss and gradient of one token whose current / old ratio is `ratio`."""
    logprobs = double([[math.log(ratio) - 4]]).requires_grad_()
    on_ST, other = torch.ones(1, 1).bool(), double([[-4.0]])
    settings = PolicySettings(clip_low=0.2, clip_high=0.3, **settings)
    loss, sums = policy_objective(logprobs, other, other, double([[advantage]]), on_ST, None, settings, Denominators(tokens=1))
    loss.backward()
    return float(loss.detach()), float(logprobs.grad), finish_policy(sums)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "grad", "clipped"),
    [
        (1.0, 2.0, None, -2.0, -2.0, 0),
        (1.2, 2.0, None, -2.4, -2.4, 0),  # inside [0.8, 1.3]
        (1.5, 2.0, None, -2.6, 0.0, 1),  # 1.3 * 2
        (0.5, 2.0, None, -1.0, -1.0, 0),  # the pessimistic side of min is not clipped
        (0.5, -2.0, None, 1.6, 0.0, 1),  # 0.8 * 2
        (1.5, -2.0, None, 3.0, 3.0, 0),
        (5.0, -2.0, None, 10.0, 10.0, 0),
        (5.0, -2.0, 3.0, 6.0, 0.0, 0),  # at most 3 * 2
        (2.0, -2.0, 3.0, 4.0, 4.0, 0),
        (5.0, 2.0, 3.0, -2.6, 0.0, 1),  # dual clip leaves positive advantages alone
    ],
)
def test_ppo_by_hand(ratio, advantage, dual_clip, loss, grad, clipped):
    actual_loss, actual_grad, metrics = ppo_of(ratio, advantage, dual_clip=dual_clip)
    assert (actual_loss, actual_grad) == pytest.approx((loss, grad))
    assert metrics["loss/clip_frac"] == clipped
    assert metrics["loss/policy"] == pytest.approx(loss)


def test_whole_objective_by_hand():
    # Three trained tokens of five; old = current, so r = 1. Ratios to the sampler 2, 1, 8: the last is masked.
    # Policy: -(2 * 1) - (1 * -0.5) - 0 = -1.5. Entropy: 0.1 * (1 + 2 + 3) = 0.6. Over 10 tokens of the step: -0.21.
    logprobs = double([[math.log(0.5), -7.0, math.log(0.2)], [math.log(0.8), -7.0, -7.0]]).requires_grad_()
    rollout = double([[math.log(0.25), -7.0, math.log(0.2)], [math.log(0.1), -7.0, -7.0]])
    advantages, entropy = double([[1.0, 9.0, -0.5], [1.0, 9.0, 9.0]]), double([[1.0, 9.0, 2.0], [3.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]]).bool()
    settings = PolicySettings(entropy_coef=0.1, correction=CorrectionRule("token", "mask", "ratio", 0.5, 5.0))
    loss, sums = policy_objective(logprobs, None, rollout, advantages, mask, entropy, settings, Denominators(10))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-0.21)
    assert_close(logprobs.grad, [[-0.2, 0.0, 0.05], [0.0, 0.0, 0.0]])
    metrics = finish_policy(sums)
    assert metrics["loss/policy"] == pytest.approx(-1.5 / 3)
    assert metrics["loss/entropy"] == pytest.approx(2.0)
    assert metrics["is/masked_frac"] == pytest.approx(1 / 3)
    # With old = current no ratio can be clipped: not measured.
    assert "loss/clip_frac" not in metrics


def test_cispo_by_hand():
    # Ratio e^0.5 = 1.6487 is capped at 1.5; the loss is -1.5 * 2 * log pi and its gradient -1.5 * 2, capped or not.
    settings = PolicySettings(loss_mode="cispo", clip_high=1.5)
    logprobs, old = double([[-1.0, -1.0]]).requires_grad_(), double([[-1.5, -0.9]])
    loss, sums = policy_objective(
        logprobs, old, old, double([[2.0, -1.0]]), torch.ones(1, 2).bool(), None, settings, Denominators(1)
    )
    loss.backward()
    small = math.exp(-0.1)
    assert float(loss.detach()) == pytest.approx(3.0 - small)
    assert_close(logprobs.grad, [[-3.0, small]])
    assert finish_policy(sums)["loss/clip_frac"] == 0.5


def test_gspo_by_hand():
    # Row 0: log ratios 0.3 and -0.1, mean 0.1: both tokens have s = e^0.1 = 1.105, inside [0.8, 1.2], gradient -s A.
    # Row 1: log ratios 0.4 and 0.2, mean 0.3: s = 1.35 is clipped to 1.2 for A = 1, so no gradient.
    settings = PolicySettings(loss_mode="gspo")
    logprobs, old = double([[-1.0, -2.0], [-1.0, -2.0]]).requires_grad_(), double([[-1.3, -1.9], [-1.4, -2.2]])
    advantages, mask = double([[2.0, -1.0], [1.0, 1.0]]), torch.ones(2, 2).bool()
    loss, sums = policy_objective(logprobs, old, old, advantages, mask, None, settings, Denominators(1))
    loss.backward()
    s = math.exp(0.1)
    assert float(loss.detach()) == pytest.approx(-2 * s + s - 2.4)
    assert_close(logprobs.grad, [[-2 * s, s], [0.0, 0.0]])
    assert finish_policy(sums)["loss/clip_frac"] == 0.5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", 28 / 6),  # 1 + 3 + 5 + 7 + 4 + 8 over 6 tokens
        ("seq-mean-token-mean", (2 + 6 + 6) / 3),  # rows 1 3, 5 7 and 4 8
        ("prompt-mean-token-mean", (16 / 4 + 6) / 2),  # the first two rows share a prompt
    ],
)
def test_aggregations_by_hand(name, expected):
    loss = double([[1.0, 3.0, 9.0], [5.0, 7.0, 9.0], [4.0, 8.0, 9.0]])
    mask = torch.tensor([[1, 1, 0]] * 3).bool()
    counts = Denominators(tokens=6, rows=3, prompts=2, prompt_tokens_S=torch.tensor([4, 4, 2]))
    assert float(AGGREGATIONS[name](loss, mask, counts)) == pytest.approx(expected)


def denominators(batch, rows=slice(None), tokens=None):
    """Counts of the whole batch, with the prompts' tokens of these rows."""
    own = [sum(row) for row in batch.mask]
    of_prompt = {p: sum(n for n, q in zip(own, batch.prompts) if q == p) for p in batch.prompts}
    prompt_tokens_S = torch.tensor([of_prompt[p] for p in batch.prompts])[rows]
    total = sum(own) if tokens is None else tokens
    return Denominators(total, sum(n > 0 for n in own), sum(n > 0 for n in of_prompt.values()), prompt_tokens_S)


def run(batch, settings, rows=slice(None), tokens=None, old=True, dtype=torch.float64):
    mask_ST = torch.tensor(batch.mask)

    def part(values):
        return torch.tensor(values, dtype=dtype)[rows]

    logprobs_ST, entropy_ST = part(batch.current).requires_grad_(), part(batch.entropy).requires_grad_()
    loss, sums = policy_objective(
        logprobs_ST,
        part(batch.old) if old else None,
        part(batch.mu),
        part(batch.advantages),
        mask_ST[rows],
        entropy_ST,
        settings,
        denominators(batch, rows, tokens),
    )
    loss.backward()
    entropy_grad_ST = torch.zeros_like(entropy_ST) if entropy_ST.grad is None else entropy_ST.grad
    return loss.detach(), logprobs_ST.grad, entropy_grad_ST, sums


@quick
@given(batches(), SETTINGS, st.booleans())
def test_loss_and_gradient_equal_a_naive_autograd(batch, settings, has_old):
    logprobs, entropy = double(batch.current).requires_grad_(), double(batch.entropy).requires_grad_()
    old, rule = batch.old if has_old else None, settings.correction
    weight = slow_algo.weights(
        batch.current if old is None else old, batch.mu, batch.mask, rule.level, rule.mode, rule.gating, rule.low, rule.high
    )
    tokens = 7
    expected = slow_algo.objective(logprobs, old, batch.advantages, batch.mask, entropy, weight, settings, tokens, batch.prompts)
    grads = torch.autograd.grad(expected + 0 * (logprobs.sum() + entropy.sum()), [logprobs, entropy])
    loss, logprob_grad, entropy_grad, _ = run(batch, settings, tokens=tokens, old=has_old)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(logprob_grad, grads[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(entropy_grad, grads[1], rtol=1e-9, atol=1e-9)


@quick
@given(batches(), SETTINGS, st.integers(0, 5), st.randoms(use_true_random=False))
def test_micro_batches_and_order_do_not_matter(batch, settings, cut, random):
    rows = list(range(len(batch.mask)))
    random.shuffle(rows)
    tokens = int(torch.tensor(batch.mask).sum())
    loss, grad, _, sums = run(batch, settings, dtype=torch.float32)
    parts = [run(batch, settings, part, tokens, dtype=torch.float32) for part in (rows[:cut], rows[cut:])]
    split_grad = torch.zeros_like(grad)
    split_grad[rows] = torch.cat([part[1] for part in parts])
    torch.testing.assert_close(parts[0][0] + parts[1][0], loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split_grad, grad, rtol=1e-5, atol=1e-6)
    added = add_sums(parts[0][3], parts[1][3])
    assert parts[0][3].keys() == parts[1][3].keys()
    assert finish_policy(added) == pytest.approx(finish_policy(sums), abs=1e-9)


def padded(batch, width, filler):
    def widen(rows, value):
        return [row + [value] * width for row in rows]

    grids = {name: widen(getattr(batch, name), filler) for name in ("old", "mu", "current", "advantages", "entropy")}
    return replace(batch, mask=widen(batch.mask, False), **grids)


@quick
@given(batches(), SETTINGS, st.sampled_from([0.0, math.nan, -math.inf]))
def test_padding_does_not_matter(batch, settings, filler):
    loss, grad, _, sums = run(batch, settings)
    padded_loss, padded_grad, _, padded_sums = run(padded(batch, 3, filler), settings)
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_grad[:, :-3], grad)
    assert not padded_grad[:, -3:].any()
    assert finish_policy(padded_sums) == pytest.approx(finish_policy(sums))


@quick
@given(batches(masks=st.just(False)), SETTINGS, st.booleans())
def test_nothing_to_train_is_zero_with_zero_gradients(batch, settings, has_old):
    loss, grad, _, sums = run(batch, settings, old=has_old)
    assert float(loss) == 0
    assert not grad.any()
    assert finish_policy(sums) == {}


def test_all_gated_out_is_zero_with_zero_gradients():
    settings = PolicySettings(correction=CorrectionRule("geo", "mask", "ratio", 0.99, 1.01))
    logprobs = double([[-1.0, -2.0]]).requires_grad_()
    mask = torch.ones(1, 2).bool()
    loss, sums = policy_objective(
        logprobs, None, double([[-3.0, -4.0]]), double([[1.0, 1.0]]), mask, None, settings, Denominators(2)
    )
    loss.backward()
    assert float(loss.detach()) == 0
    assert not logprobs.grad.any()
    assert finish_policy(sums)["is/masked_seq_frac"] == 1


@quick
@given(batches(logprobs=EXTREME_LOGPROBS), SETTINGS, st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_finite_out(batch, settings, has_old, dtype):
    loss, logprob_grad, entropy_grad, sums = run(batch, settings, old=has_old, dtype=dtype)
    assert loss.isfinite()
    assert logprob_grad.isfinite().all()
    assert entropy_grad.isfinite().all()
    assert all(math.isfinite(value) for value in finish_policy(sums).values())


def test_an_entropy_bonus_needs_the_entropy():
    one = double([[-1.0]])
    with pytest.raises(ValueError, match="needs entropy_ST"):
        policy_objective(one, None, one, one, torch.ones(1, 1).bool(), None, PolicySettings(entropy_coef=0.1), Denominators(1))
