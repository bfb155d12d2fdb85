"""Every setting trains the tiny model: fixed seed, 60 steps, the reward (for distillation: the KL) must move enough."""

import numpy as np
import pytest

from engine.algo.names import PRESETS
from tests.training.stale_presets import HIGH, LOW, rates, stale_batch
from tests.training.tiny_training import SETTINGS, TEACHER, build_start, join_alone, train

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    join_alone()
    return build_start(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def teacher(start):
    path = start.with_name(TEACHER)
    train("grpo", start, None, save_to=path)
    return path


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "on_policy_distill"])
def test_the_reward_rises(name, start):
    outcome = train(name, start, None)
    first, last = outcome.fifths(outcome.rewards)
    assert last - first >= 0.15


def test_distillation_closes_the_gap_to_the_teacher(start, teacher):
    outcome = train("on_policy_distill", start, teacher)
    first, last = outcome.fifths(outcome.kl)
    assert last <= 0.2 * first


def test_presets_differ_on_the_same_stale_data_as_the_formulas_say(start):
    batch, old_BT = stale_batch(start)
    found = {preset: rates(batch, old_BT, preset) for preset in PRESETS}
    # The same in numpy: ratios of single tokens, and their products over segments.
    masks = batch.mask_BT.numpy()
    logs = np.where(masks, old_BT.double().numpy() - batch.rollout_logprobs_BT.double().numpy(), 0)
    ratios, products = np.exp(logs)[masks], np.exp(logs.sum(1))
    low, high = (ratios < LOW).mean(), (ratios > HIGH).mean()
    outside = (products < LOW) | (products > HIGH)
    assert found["tis"]["is/truncated_frac"] == pytest.approx(high) and "is/masked_frac" not in found["tis"]
    assert found["icepop"]["is/masked_low_frac"] == pytest.approx(low)
    assert found["icepop"]["is/masked_high_frac"] == pytest.approx(high)
    assert found["mis"]["is/masked_seq_frac"] == pytest.approx(outside.mean())
    assert found["mis"]["is/masked_frac"] == pytest.approx((outside[:, None] & masks).sum() / masks.sum())
    assert 0 < high < found["icepop"]["is/masked_frac"] < found["mis"]["is/masked_frac"]
