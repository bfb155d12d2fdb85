"""From finished groups to a training order."""

import math

import numpy as np
import pytest

from engine.batch import clipped_reward, prepare, reward_metrics, set_advantages, shaped_reward, traced_rollouts
from engine.config import Config
from engine.rollout.filtering import filtered
from engine.rollout.pool import Batch
from engine.rollout.transport import FinishedGroup, Prompt, RolloutSummary, SegmentSummary
from engine.train.plan import Measured


def config(**algo) -> Config:
    return Config.model_validate(
        {"algo": {"advantage": {"estimator": "grpo", **algo}}, "rollout": {"batch_size": 2, "n_samples_per_prompt": 2},
         "trace": {"rollouts_per_step": 2}}
    )  # fmt: skip


def rollout(name: str, reward: float, versions: dict[int, int], length: int = 10, **more) -> RolloutSummary:
    segment = SegmentSummary(length, sum(versions.values()), versions)
    return RolloutSummary(name, reward, reward, 1, False, [segment], **more)


def group(name: str, *rollouts: RolloutSummary, **more) -> FinishedGroup:
    return FinishedGroup(name, Prompt(f"{name}@0", "?"), list(rollouts), payload=f"payload-{name}", **more)


def batch(*groups: FinishedGroup, version: int = 5, lost: tuple = ()) -> Batch:
    return Batch(version, list(groups), {"queue/depth": 1.0}, list(lost))


def test_group_advantages_token_counts_and_references():
    taken = batch(
        group("a", rollout("a0", 1.0, {5: 4}), rollout("a1", 0.0, {4: 3, 5: 1})),
        group("b", rollout("b0", 0.5, {5: 2}), rollout("b1", 0.5, {5: 2})),
    )
    prepared = prepare(taken, max_staleness=2, config=config())
    order = prepared.order
    # One standard deviation (n - 1) of {1, 0} is sqrt(1/2), so the advantages are +-0.5 / sqrt(0.5); group b has no spread.
    expected = 0.5 / math.sqrt(0.5)
    assert [s.advantage for s in order.samples] == pytest.approx([expected, -expected, 0.0, 0.0], abs=1e-6)
    assert [(s.payload, s.rollout) for s in order.samples] == [
        ("payload-a", 0),
        ("payload-a", 1),
        ("payload-b", 0),
        ("payload-b", 1),
    ]
    assert [step.tokens for step in order.optimizer_steps] == [12]
    assert sorted(i for b in order.optimizer_steps[0].micro_batches[0] for i in b) == [0, 1, 2, 3]
    metrics = prepared.metrics
    assert metrics["reward/mean"] == 0.5 and metrics["reward/max"] == 1.0
    assert metrics["reward/zero_std_group_frac"] == 0.5
    assert metrics["staleness/spanning_rollouts"] == 1
    assert metrics["rollout/response_len_mean"] == 3.0
    assert metrics["queue/depth"] == 1.0
    assert sum(s.trace for s in order.samples) == 2


def test_tokens_over_age_leave_the_count_and_a_rollout_without_young_tokens_is_dropped():
    taken = batch(group("a", rollout("a0", 1.0, {1: 3, 4: 2}), rollout("a1", 0.0, {1: 4})))
    prepared = prepare(taken, max_staleness=1, config=config())
    assert prepared.metrics["staleness/dropped_rollouts"] == 1 and prepared.dropped_tokens == 4
    assert [step.tokens for step in prepared.order.optimizer_steps] == [2]
    # Its only reward left, the group says nothing about better or worse.
    assert [s.advantage for s in prepared.order.samples] == [0.0]
    assert "reward/zero_std_group_frac" not in prepared.metrics


def test_a_batch_without_young_tokens_makes_an_empty_order():
    prepared = prepare(batch(group("a", rollout("a0", 1.0, {0: 3}))), max_staleness=0, config=config())
    assert prepared.order.samples == [] and prepared.order.optimizer_steps == []


def test_missing_rewards_are_counted_and_kept_out():
    metrics = reward_metrics([1.0, math.nan, 3.0], [0, 0, 1])
    assert metrics == {"reward/missing": 1.0, "reward/mean": 2.0, "reward/std": 1.0, "reward/max": 3.0}
    assert math.isnan(clipped_reward(math.inf, (-1, 1))) and clipped_reward(7, (-1, 1)) == 1


def test_segments_of_one_rollout_share_its_advantage_and_its_optimizer_step():
    two = RolloutSummary("a0", 1.0, 1.0, 1, False, [SegmentSummary(8, 2, {5: 2}), SegmentSummary(6, 1, {5: 1})])
    settings = config().model_copy(update={"train": config().train.model_copy(update={"batch_size": 1})})
    prepared = prepare(batch(group("a", two, rollout("a1", 0.0, {5: 2}))), max_staleness=0, config=settings)
    assert [s.segment for s in prepared.order.samples] == [0, 1, 0]
    first, second = prepared.order.optimizer_steps
    assert sorted(i for b in first.micro_batches[0] for i in b) == [0, 1] and first.tokens == 3
    assert [i for b in second.micro_batches[0] for i in b] == [2] and second.tokens == 2
    assert prepared.order.samples[0].advantage == prepared.order.samples[1].advantage > 0


def test_a_token_level_advantage_travels_as_one_value_per_sampled_token():
    settings = config(estimator="reinforce", gamma=0.5, no_whiten=True)
    prepared = prepare(batch(group("a", rollout("a0", 1.0, {5: 3}))), max_staleness=0, config=settings)
    np.testing.assert_allclose(prepared.order.samples[0].advantage, [0.25, 0.5, 1.0])


def test_measured_values_make_advantages_and_returns():
    settings = config(estimator="gae", gamma=1.0, lam=1.0, no_whiten=True)
    prepared = prepare(batch(group("a", rollout("a0", 1.0, {5: 2}), rollout("a1", 0.0, {5: 1}))), 0, settings)
    assert prepared.advantages == []
    measured = {0: Measured(values=np.array([0.25, 0.5], np.float32)), 1: Measured(values=np.array([0.5], np.float32))}
    set_advantages(prepared, measured, settings)
    first, second = prepared.order.samples
    # With lam 1 the advantage is the return minus the value, so the returns are the rewards.
    assert first.advantage.tolist() == [0.75, 0.5] and second.advantage == -0.5
    assert first.returns.tolist() == [1.0, 1.0] and second.returns.tolist() == [0.0]
    assert first.values.tolist() == [0.25, 0.5]


def test_lost_groups_are_counted_but_not_trained():
    lost = group("x", failed=2, retried=1, dropped={"invariant": 1})
    metrics = prepare(batch(group("a", rollout("a0", 1.0, {5: 1})), lost=(lost,)), 0, config()).metrics
    assert (metrics["rollout/failed"], metrics["rollout/retried"], metrics["rollout/dropped/invariant"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("rewards", "length", "truncated", "expected"),
    [
        # Buffer 4 before max_len 20: the penalty starts after 16 tokens and is 2 at 20.
        ({"overlong_buffer_len": 4, "overlong_penalty_factor": 2.0}, 16, False, 1.0),
        ({"overlong_buffer_len": 4, "overlong_penalty_factor": 2.0}, 17, False, 0.5),
        ({"overlong_buffer_len": 4, "overlong_penalty_factor": 2.0}, 20, True, -1.0),
        ({"stop_properly_penalty_coef": 0.25}, 20, True, 0.25),
        ({"stop_properly_penalty_coef": 0.25}, 20, False, 1.0),
        ({"stop_properly_penalty_coef": -0.5}, 20, True, -0.5),
        ({"clip_range": (-1.0, 0.5)}, 20, False, 0.5),
    ],
)
def test_length_penalties(rewards, length, truncated, expected):
    settings = Config.model_validate({"reward": rewards, "data": {"max_len": 20}})
    made = RolloutSummary("a", 1.0, 1.0, 1, truncated, [SegmentSummary(5, 2, {0: 2}), SegmentSummary(length, 2, {0: 2})])
    assert shaped_reward(made, settings) == expected


def test_a_missing_reward_stays_missing_under_every_penalty():
    made = RolloutSummary("a", math.nan, math.nan, 1, True, [SegmentSummary(20, 2, {0: 2})])
    for rewards in ({"stop_properly_penalty_coef": -1.0}, {"overlong_buffer_len": 4}):
        assert math.isnan(shaped_reward(made, Config.model_validate({"reward": rewards, "data": {"max_len": 20}})))


def test_the_pass_rate_counts_groups_that_the_filter_refused():
    settings = config().model_copy(update={"algo": config().algo.model_copy(update={"dynamic_filtering_enable": True})})
    refused, failed = group("x", dropped={"dynamic_filter": 2}), group("y", failed=2)
    metrics = prepare(batch(group("a", rollout("a0", 1.0, {5: 1})), lost=(refused, failed)), 0, settings).metrics
    assert metrics["rollout/filter_pass_frac"] == 0.5 and metrics["rollout/dropped/dynamic_filter"] == 2


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([1.0, 0.0], None),
        ([0.0, 0.0], "dynamic_filter"),
        ([1.0, 1.0], "dynamic_filter"),
        ([1.0, math.nan], None),
        ([0.5], "incomplete_group"),
        ([], None),
    ],
)
def test_dynamic_filter(scores, reason):
    before = group("a", *[rollout(f"a{i}", s, {0: 1}) for i, s in enumerate(scores)], dropped={"invariant": 1})
    after = filtered(before, 2, (0.0, 1.0))
    if reason is None:
        assert after is before
    else:
        assert not after.rollouts and after.payload is None and after.dropped == {"invariant": 1, reason: len(scores)}


@pytest.mark.parametrize(
    ("groups", "wanted", "expected"),
    [([0, 0, 1, 1, 2, 2, 3, 3], 4, {0, 1, 4, 5}), ([0, 0, 1], 8, {0, 1, 2}), ([0, 0, 0], 2, {0, 1}), ([0, 1], 0, set()),
     ([], 4, set()), ([0, 0, 0, 1, 1, 2], 3, {0, 1, 2})],
)  # fmt: skip
def test_whole_groups_are_traced_evenly_spread(groups, wanted, expected):
    assert traced_rollouts(groups, wanted) == expected
