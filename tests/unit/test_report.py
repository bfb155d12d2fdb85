"""What a run says of its engines and of a batch that trained nothing."""

import math

from engine.config import Config
from engine.report import alerts, engine_spreads
from engine.rollout.transport import EngineStats

DISTILLING = Config.model_validate({"algo": {"advantage": {"estimator": "on_policy_distill"}}})


def test_a_batch_without_any_reward_is_told_unless_there_is_a_teacher():
    assert list(alerts([math.nan, math.inf], {}, Config())) == ["no_reward"]
    assert alerts([math.nan, 0.0], {}, Config()) == alerts([], {}, Config()) == alerts([math.nan], {}, DISTILLING) == {}


def test_a_gradient_that_is_not_finite_is_told():
    assert list(alerts([1.0], {"optim/grad_norm": math.inf}, Config())) == ["not_finite"]
    told = alerts([1.0], {"optim/grad_norm": 0.3, "optim/critic_grad_norm": math.nan}, Config())
    assert told == {"not_finite": "optim/critic_grad_norm is nan: such a step leaves the weights as they are"}
    assert alerts([1.0], {"optim/grad_norm": 0.3}, Config()) == {}


def test_engines_are_described_by_their_means_over_the_step():
    before = [EngineStats(10.0, 4.0, 1.0, 3, 7, 0, 0.0), EngineStats(20.0, 0.0, None, 0, 7, 0, 0.0)]
    after = [EngineStats(14.0, 5.0, 1.5, 5, 8, 0, 0.0), EngineStats(36.0, 0.0, None, 0, 7, 0, 0.0)]
    found = engine_spreads(after, before, seconds=2.0)
    assert (found["engine/running/min"], found["engine/running/max"], found["engine/running/worst"]) == (2.0, 8.0, "engine-0")
    assert (found["engine/waiting/mean"], found["engine/kv_frac/mean"]) == (0.25, 0.25)
    assert found["engine/kv_frac/worst"] == "engine-0", "an engine that does not say is left out"
    assert (found["engine/preemptions/max"], found["engine/version/min"], found["engine/version/worst"]) == (2.0, 7.0, "engine-1")
    first = engine_spreads(after, [], seconds=2.0)
    assert first["engine/version/max"] == 8.0 and not any("running" in key for key in first), "nothing to compare with"
