import math

import pytest
import torch
from batches import EXTREME_LOGPROBS, batches, double, quick
from hypothesis import given
from hypothesis import strategies as st

from engine.algo.mismatch import finish_gap, gap_sums
from engine.algo.sums import add_sums


def gap(train, rollout, mask=None):
    mask = torch.ones(len(train)).bool() if mask is None else torch.tensor(mask)
    return gap_sums(double(train), double(rollout), mask)


def test_by_hand():
    # d = ln 2 and -ln 2: k3 = 2 - 1 - 0.693147 and 1/2 - 1 + 0.693147, mean 1/4; |0.5 - 0.25| and |0.2 - 0.4|.
    # The third token agrees to the bit; the last is off the mask.
    train, rollout = [math.log(0.5), math.log(0.2), -1.5, 0.0], [math.log(0.25), math.log(0.4), -1.5, -9.0]
    values = finish_gap(gap(train, rollout, [True, True, True, False]))
    expected = {"k3_kl": 0.5 / 3, "abs_diff": 2 * math.log(2) / 3, "max_prob_diff": 0.25, "bitwise_frac": 1 / 3}
    assert values == pytest.approx(expected)


@pytest.mark.parametrize("difference", [1e-4, -1e-6, 1e-9])
def test_k3_is_right_where_exp_minus_one_cancels(difference):
    # k3 = d^2 / 2 + d^3 / 6 + ...: 5e-13 at d = 1e-6.
    expected = difference**2 / 2 + difference**3 / 6
    assert finish_gap(gap([difference], [0.0]))["k3_kl"] == pytest.approx(expected, rel=1e-6, abs=0)


def test_float32_log_probs_are_compared_without_further_rounding():
    train = torch.tensor([-1.0000001], dtype=torch.float32)
    rollout = torch.tensor([-1.0], dtype=torch.float32)
    # One unit in the last place at 1 is 2^-23.
    assert finish_gap(gap_sums(train, rollout, torch.tensor([True])))["abs_diff"] == pytest.approx(2**-23, rel=1e-9)


def test_no_token_measures_nothing():
    assert finish_gap(gap([-1.0], [-2.0], [False])) == {}


@quick
@given(batches(), st.integers(0, 5))
def test_parts_add_up(batch, cut):
    train, rollout, mask = double(batch.current), double(batch.mu), torch.tensor(batch.mask)
    parts = add_sums(gap_sums(train[:cut], rollout[:cut], mask[:cut]), gap_sums(train[cut:], rollout[cut:], mask[cut:]))
    assert finish_gap(parts) == pytest.approx(finish_gap(gap_sums(train, rollout, mask)))


@quick
@given(batches(logprobs=EXTREME_LOGPROBS))
def test_finite_and_never_negative(batch):
    values = finish_gap(gap_sums(double(batch.current), double(batch.mu), torch.tensor(batch.mask)))
    assert all(math.isfinite(value) and value >= 0 for value in values.values())
