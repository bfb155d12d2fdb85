"""What a run says of a batch that trained nothing."""

import math

from engine.config import Config
from engine.report import alerts

DISTILLING = Config.model_validate({"algo": {"advantage": {"estimator": "on_policy_distill"}}})


def test_a_batch_without_any_reward_is_told_unless_there_is_a_teacher():
    assert list(alerts([math.nan, math.inf], {}, Config())) == ["no_reward"]
    assert alerts([math.nan, 0.0], {}, Config()) == alerts([], {}, Config()) == alerts([math.nan], {}, DISTILLING) == {}


def test_a_gradient_that_is_not_finite_is_told():
    assert list(alerts([1.0], {"optim/grad_norm": math.inf}, Config())) == ["not_finite"]
    assert alerts([1.0], {"optim/grad_norm": 0.3}, Config()) == {}
