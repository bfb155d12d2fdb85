import math

import pytest
import slow_algo
import torch
from batches import assert_close, batches, double, quick
from hypothesis import given
from hypothesis import strategies as st

from engine.algo.advantage import ESTIMATORS, AdvantageInputs, discounted_returns, whiten

NAN = math.nan


def inputs_of(batch, **options):
    return AdvantageInputs(
        rewards_R=double(batch.rewards),
        group_R=torch.tensor(batch.groups),
        rollout_S=torch.tensor(batch.rollout_of),
        mask_ST=torch.tensor(batch.mask),
        **options,
    )


def rows(rewards, groups, rollout_of, mask, **options):
    return AdvantageInputs(
        torch.tensor(rewards), torch.tensor(groups), torch.tensor(rollout_of), torch.tensor(mask).bool(), **options
    )


def test_grpo_by_hand():
    # Group 0: rewards 1 0 0 1 (and one missing): mean 1/2, std sqrt(4 * 1/4 / 3) = 0.57735, so +-0.8660254.
    # Group 9: rewards 3 1: mean 2, std sqrt(2), so +-0.70710678.
    inputs = rows([1.0, 0.0, 3.0, 0.0, 1.0, NAN, 1.0], [0, 0, 9, 0, 0, 0, 9], [0, 1, 2, 3, 4, 5, 6], [[1, 0, 1]] * 7)
    advantages = ESTIMATORS["grpo"](inputs)
    expected = [0.8660254, -0.8660254, 0.70710678, -0.8660254, 0.8660254, 0.0, -0.70710678]
    torch.testing.assert_close(advantages, torch.tensor([[a, 0.0, a] for a in expected]))


def test_grpo_counts_a_rollout_once_and_gives_all_its_segments_the_same():
    # Rollout 0 has three segments; statistics over {1, 0} alone: mean 1/2, std sqrt(1/2), so +-0.70710678.
    inputs = rows([1.0, 0.0], [4, 4], [0, 0, 1, 0], [[1, 1], [0, 1], [1, 1], [1, 0]])
    a = 0.70710678
    torch.testing.assert_close(ESTIMATORS["grpo"](inputs), torch.tensor([[a, a], [0.0, a], [-a, -a], [a, 0.0]]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Group 0 has rewards 1 0 2 (mean 1) and a missing one, group 9 the single reward 5.
        ("dr_grpo", [0.0, -1.0, 1.0, 0.0, 0.0]),
        # Means of the others: (0 + 2) / 2, (1 + 2) / 2, (1 + 0) / 2; alone the reward stays.
        ("rloo", [0.0, -1.5, 1.5, 0.0, 5.0]),
        # Two tokens each of 0 -1 1 and 0: mean 0, variance 1/2, so times sqrt(2).
        ("reinforce_baseline", [0.0, -math.sqrt(2), math.sqrt(2), 0.0, 0.0]),
    ],
)
def test_group_baselines_by_hand(name, expected):
    inputs = rows([1.0, 0.0, 2.0, NAN, 5.0], [0, 0, 0, 0, 9], [0, 1, 2, 3, 4], [[1, 0, 1]] * 5)
    torch.testing.assert_close(ESTIMATORS[name](inputs), torch.tensor([[a, 0.0, a] for a in expected]))


@pytest.mark.parametrize("rewards", [[0.1] * 3, [7.3] * 3, [0.5, NAN, NAN], [NAN] * 3])
def test_grpo_without_spread_is_exactly_zero(rewards):
    # Rounding noise over a std that is rounding noise too could read about 1.
    advantages = ESTIMATORS["grpo"](rows(rewards, [0, 0, 0], [0, 1, 2], [[1, 1]] * 3))
    assert torch.equal(advantages, torch.zeros(3, 2))


def test_grpo_without_spread_is_exactly_zero_in_float64():
    # Ten times 0.1 sums to 0.9999999999999999: a plain mean would leave 1e-17, over epsilon 1e-8.
    group = rows([0.1] * 10, [0] * 10, list(range(10)), [[1]] * 10)
    inputs = AdvantageInputs(double([0.1] * 10), group.group_R, group.rollout_S, group.mask_ST)
    assert not ESTIMATORS["grpo"](inputs).any()


def test_reinforce_returns_by_hand():
    # gamma 1/2, reward 8 at the last sampled token (position 4): G = 8 at 4, 2 at 2, 1 at 1. Feedback counts as time.
    # The token reward -1 at position 1 makes G_1 = 0; the one at position 3 lies off the mask.
    inputs = rows(
        [8.0],
        [0],
        [0],
        [[0, 1, 1, 0, 1, 0]],
        gamma=0.5,
        no_whiten=True,
        token_rewards_ST=torch.tensor([[9.0, -1.0, 0.0, 9.0, 0.0, 9.0]]),
    )
    assert torch.equal(ESTIMATORS["reinforce"](inputs), torch.tensor([[0.0, 0.0, 2.0, 0.0, 8.0, 0.0]]))


def test_reinforce_whitens_over_tokens_and_leaves_missing_rewards_out():
    # Returns 1 1 1 (one row), 0 (another), a missing row: mean 3/4, variance 3/16, so 0.57735 and -1.7320508.
    inputs = rows([1.0, 0.0, NAN], [0, 1, 2], [0, 1, 2], [[1, 1, 1], [0, 1, 0], [1, 1, 1]])
    expected = [[0.57735027] * 3, [0.0, -1.7320508, 0.0], [0.0] * 3]
    torch.testing.assert_close(ESTIMATORS["reinforce"](inputs), torch.tensor(expected))


def test_reinforce_gives_each_segment_its_own_reward():
    # Two segments of one rollout with reward 1: both rows end in 1, nothing flows from the second to the first.
    inputs = rows([1.0], [0], [0, 0], [[1, 1], [1, 0]], gamma=0.5, no_whiten=True)
    assert torch.equal(ESTIMATORS["reinforce"](inputs), torch.tensor([[0.5, 1.0], [1.0, 0.0]]))


def test_whiten_edge_cases():
    assert torch.equal(whiten(double([[5.0, 6.0]]), torch.tensor([[False, False]])), double([[0.0, 0.0]]))
    assert torch.equal(whiten(double([[5.0, 5.0]]), torch.tensor([[True, True]])), double([[0.0, 0.0]]))
    # Variance 1e-10 is below the floor 1e-8: +-1e-5 is divided by 1e-4, not by 1e-5.
    assert_close(whiten(double([[1e-5, -1e-5]]), torch.tensor([[True, True]])), [[0.1, -0.1]])


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_empty_batches(shape):
    rollout_S = torch.arange(shape[0])
    inputs = AdvantageInputs(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), rollout_S, torch.zeros(shape).bool())
    for estimator in ESTIMATORS.values():
        assert estimator(inputs).shape == shape


@quick
@given(batches())
def test_grpo_equals_the_slow_one(batch):
    expected = slow_algo.grpo(batch.rewards, batch.groups, batch.rollout_of, batch.mask)
    assert_close(ESTIMATORS["grpo"](inputs_of(batch)), expected)


@quick
@given(batches(), st.sampled_from(["dr_grpo", "rloo"]))
def test_plain_baselines_equal_the_slow_ones(batch, name):
    expected = getattr(slow_algo, name)(batch.rewards, batch.groups, batch.rollout_of, batch.mask)
    assert_close(ESTIMATORS[name](inputs_of(batch)), expected)


@quick
@given(batches(), st.booleans())
def test_reinforce_baseline_equals_the_slow_one(batch, no_whiten):
    expected = slow_algo.reinforce_baseline(batch.rewards, batch.groups, batch.rollout_of, batch.mask, no_whiten)
    assert_close(ESTIMATORS["reinforce_baseline"](inputs_of(batch, no_whiten=no_whiten)), expected)


@quick
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]), st.booleans())
def test_reinforce_equals_the_slow_one(batch, gamma, no_whiten):
    expected = slow_algo.reinforce(batch.rewards, batch.rollout_of, batch.mask, batch.token_rewards, gamma, no_whiten)
    options = {"token_rewards_ST": double(batch.token_rewards), "gamma": gamma, "no_whiten": no_whiten}
    # Where the returns differ by rounding only, whitening divides by its floor: 1e-16 / 1e-4.
    assert_close(ESTIMATORS["reinforce"](inputs_of(batch, **options)), expected)


def test_gae_by_hand():
    # gamma 1/2, lam 1/2, values 1 2 4 at the sampled positions 0 2 3, reward 8 at the last; position 1 is feedback.
    # delta_3 = 8 - 4 = 4; delta_2 = 2 - 2 = 0, A_2 = 0 + 4 / 4 = 1; delta_0 = 1 - 1 = 0, A_0 = 1 / 4.
    values = torch.tensor([[1.0, 99.0, 2.0, 4.0]])
    inputs = rows([8.0], [0], [0], [[1, 0, 1, 1]], gamma=0.5, lam=0.5, values_ST=values, no_whiten=True)
    assert torch.equal(ESTIMATORS["gae"](inputs), torch.tensor([[0.25, 0.0, 1.0, 4.0]]))


@quick
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]), st.booleans())
def test_gae_equals_the_slow_one(batch, gamma, lam, no_whiten):
    expected = slow_algo.gae(
        batch.rewards, batch.rollout_of, batch.mask, batch.token_rewards, batch.advantages, gamma, lam, no_whiten
    )
    inputs = inputs_of(
        batch, token_rewards_ST=double(batch.token_rewards), values_ST=double(batch.advantages), gamma=gamma, lam=lam,
        no_whiten=no_whiten,
    )  # fmt: skip
    assert_close(ESTIMATORS["gae"](inputs), expected, 1e-8)


def test_distillation_passes_the_rewards_of_tokens_on():
    inputs = rows([NAN], [0], [0], [[0, 1, 1]], token_rewards_ST=torch.tensor([[9.0, -0.5, 0.25]]))
    assert torch.equal(ESTIMATORS["on_policy_distill"](inputs), torch.tensor([[0.0, -0.5, 0.25]]))


def test_discounted_returns_of_a_long_row():
    rewards_ST = torch.zeros(1, 1000, dtype=torch.float64)
    rewards_ST[0, -1] = 1
    # A single reward at the end: G_t = 0.99 ** (999 - t).
    assert_close(discounted_returns(rewards_ST, 0.99), [[0.99 ** (999 - t) for t in range(1000)]])


@quick
@given(batches(), st.randoms(use_true_random=False))
def test_order_does_not_matter(batch, random):
    segments, rollouts = list(range(len(batch.mask))), list(range(len(batch.rewards)))
    random.shuffle(segments)
    random.shuffle(rollouts)
    place = {rollout: index for index, rollout in enumerate(rollouts)}
    shuffled = AdvantageInputs(
        double(batch.rewards)[rollouts],
        torch.tensor(batch.groups)[rollouts],
        torch.tensor([place[batch.rollout_of[s]] for s in segments]),
        torch.tensor(batch.mask)[segments],
    )
    for estimator in ESTIMATORS.values():
        torch.testing.assert_close(estimator(shuffled), estimator(inputs_of(batch))[segments], rtol=1e-9, atol=1e-9)


@quick
@given(batches(rewards=st.sampled_from([0.0, 1e-30, 1e30, -1e30, math.inf, NAN])))
def test_finite_out(batch):
    for estimator in ESTIMATORS.values():
        advantages_ST = estimator(inputs_of(batch))
        assert advantages_ST.isfinite().all()
        assert not advantages_ST[~torch.tensor(batch.mask)].any()
