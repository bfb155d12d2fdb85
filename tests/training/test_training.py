"""Every setting trains the tiny model: fixed seed, 60 steps, the reward (for distillation: the KL) must move enough."""

import pytest

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
