"""Random batches: shapes, masks, segment layouts and ties, as plain lists that tensors are made from."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st

quick = settings(max_examples=40, deadline=None, derandomize=True)

# Ratios up to e^3 either way: below, inside and above every band that the tests use.
LOGPROBS = st.floats(-3, -0.001)
EXTREME_LOGPROBS = st.sampled_from([0.0, -1e-30, -1e-7, -0.5, -20.0, -745.0, -9999.0, -1e30])
ADVANTAGES = st.floats(-3, 3)


@dataclass(frozen=True)
class Batch:
    mask: list
    rollout_of: list
    groups: list
    rewards: list
    token_rewards: list
    old: list
    mu: list
    current: list
    advantages: list
    entropy: list
    prompts: list


@st.composite
def batches(draw, logprobs=LOGPROBS, rewards=None, masks=None):
    segments, positions, rollouts = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    # Few distinct values, so that ties, zero-std groups and missing rewards are common.
    rewards = st.sampled_from([0.0, 1.0, -1.0, 0.1, float("nan")]) if rewards is None else rewards

    def grid(elements):
        row = st.lists(elements, min_size=positions, max_size=positions)
        return draw(st.lists(row, min_size=segments, max_size=segments))

    def per_rollout(elements):
        return draw(st.lists(elements, min_size=rollouts, max_size=rollouts))

    return Batch(
        mask=grid(st.booleans() if masks is None else masks),
        rollout_of=draw(st.lists(st.integers(0, rollouts - 1), min_size=segments, max_size=segments)),
        groups=per_rollout(st.integers(5, 7)),
        rewards=per_rollout(rewards),
        token_rewards=grid(st.floats(-1, 1)),
        old=grid(logprobs),
        mu=grid(logprobs),
        current=grid(logprobs),
        advantages=grid(ADVANTAGES),
        entropy=grid(st.floats(0, 3)),
        prompts=draw(st.lists(st.integers(0, 2), min_size=segments, max_size=segments)),
    )


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_close(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, double(expected), rtol=tolerance, atol=tolerance)
