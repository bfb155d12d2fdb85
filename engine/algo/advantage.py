"""Advantage estimators: rewards of rollouts in, one advantage per sampled token out.

Shapes: S segments, T positions, R rollouts. A rollout has one or more segments. A new estimator is one function with
`@estimator(name)` above it and its name in `names.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple

import torch
from torch.nn.functional import pad

_MIN_VARIANCE = 1e-8
_STD_EPSILON = 1e-9


@dataclass(frozen=True)
class AdvantageInputs:
    """One whole training batch (statistics run over all of it, so never a micro-batch).

    rewards_R        reward of each rollout; not finite = missing: it enters no statistic, its advantage is 0
    group_R          integer id of the group (prompt) of each rollout
    rollout_S        index into rewards_R of the rollout that each segment belongs to
    mask_ST          bool, true at sampled tokens
    token_rewards_ST optional reward per token, e.g. -beta * kl; read by estimators that discount
    values_ST        the critic's value before each sampled token (gae); None: 0
    gamma, lam       discount per position; decay of GAE
    no_whiten        return the values as they are where the estimator would whiten them
    """

    rewards_R: torch.Tensor
    group_R: torch.Tensor
    rollout_S: torch.Tensor
    mask_ST: torch.Tensor
    token_rewards_ST: torch.Tensor | None = None
    values_ST: torch.Tensor | None = None
    gamma: float = 1.0
    lam: float = 1.0
    no_whiten: bool = False


Estimator = Callable[[AdvantageInputs], torch.Tensor]
ESTIMATORS: dict[str, Estimator] = {}


def estimator(name: str) -> Callable[[Estimator], Estimator]:
    """Register a function of AdvantageInputs, returning float64 advantages of shape (S, T), under `name`."""

    def register(compute: Estimator) -> Estimator:
        ESTIMATORS[name] = checked(compute)
        return compute

    return register


def checked(compute: Estimator) -> Estimator:
    """The estimator with its result in the dtype of the rewards; it raises ValueError for a result of another shape."""

    @wraps(compute)
    def advantages(inputs: AdvantageInputs) -> torch.Tensor:
        advantages_ST = compute(inputs)
        if advantages_ST.shape != inputs.mask_ST.shape:
            raise ValueError(f"an estimator returns one advantage per token, shape {tuple(inputs.mask_ST.shape)}, "
                             f"not {tuple(advantages_ST.shape)}")  # fmt: skip
        return advantages_ST.to(inputs.rewards_R.dtype)

    return advantages


@estimator("reinforce")
def reinforce(inputs: AdvantageInputs) -> torch.Tensor:
    """Whitened discounted return; every segment is a row of its own with the reward at its last sampled token.

    REINFORCE with a batch-wide baseline (Williams 1992; Hu et al., "REINFORCE++", 2025).
    """
    rewards_ST, mask_ST = _token_rewards(inputs)
    returns_ST = discounted_returns(rewards_ST, inputs.gamma)
    return torch.where(mask_ST, returns_ST, 0) if inputs.no_whiten else whiten(returns_ST, mask_ST)


@estimator("gae")
def gae(inputs: AdvantageInputs) -> torch.Tensor:
    """Whitened A_t = delta_t + gamma * lam * A_(t+1) with delta_t = r_t + gamma * V_(t+1) - V_t, rewards as in reinforce.

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016.
    """
    advantages_ST = generalized_advantages(inputs)
    _, mask_ST = _token_rewards(inputs)
    return advantages_ST if inputs.no_whiten else whiten(advantages_ST, mask_ST)


def generalized_advantages(inputs: AdvantageInputs) -> torch.Tensor:
    """The advantages of `gae` before whitening; advantage + value is the return that the critic learns.

    Tokens off the mask are transparent: value and advantage of the next sampled token pass through them undiscounted.
    """
    rewards_ST, mask_ST = _token_rewards(inputs)
    values_ST = torch.zeros_like(rewards_ST) if inputs.values_ST is None else inputs.values_ST.double()
    # Sampled tokens first in each row, so that the next one is the next column.
    order_ST = mask_ST.int().argsort(dim=1, descending=True, stable=True)
    sampled_ST = mask_ST.gather(1, order_ST)
    values_ST = torch.where(sampled_ST, values_ST.gather(1, order_ST), 0)
    deltas_ST = rewards_ST.gather(1, order_ST) + inputs.gamma * pad(values_ST[:, 1:], (0, 1)) - values_ST
    advantages_ST = discounted_returns(torch.where(sampled_ST, deltas_ST, 0), inputs.gamma * inputs.lam)
    return torch.zeros_like(rewards_ST).scatter(1, order_ST, torch.where(sampled_ST, advantages_ST, 0))


@estimator("on_policy_distill")
def on_policy_distill(inputs: AdvantageInputs) -> torch.Tensor:
    """-(log pi - log pi_teacher) of each token, which comes in as token reward: the reverse KL, without any reward of rollouts
    (Lu et al., "On-Policy Distillation", 2025)."""
    if inputs.token_rewards_ST is None:
        return torch.zeros_like(inputs.mask_ST, dtype=torch.float64)
    return torch.where(inputs.mask_ST, inputs.token_rewards_ST.double(), 0)


@estimator("grpo")
def grpo(inputs: AdvantageInputs) -> torch.Tensor:
    """(r - group mean) / (group std + 1e-9), the same for every token of every segment of the rollout.

    One reward per rollout enters the statistics; std has n - 1; a group with one reward gets 0 (Shao et al.,
    "DeepSeekMath", 2024).
    """
    group = _group_statistics(inputs)
    return _spread(inputs, group.centered_R / (group.std_R + _STD_EPSILON))


@estimator("dr_grpo")
def dr_grpo(inputs: AdvantageInputs) -> torch.Tensor:
    """r - group mean, without division by the std (Liu et al., "Understanding R1-Zero-Like Training", 2025)."""
    return _spread(inputs, _group_statistics(inputs).centered_R)


@estimator("rloo")
def rloo(inputs: AdvantageInputs) -> torch.Tensor:
    """r - mean of the group's other rewards; a reward alone in its group stays as it is (Ahmadian et al., "Back to Basics",
    2024)."""
    group, rewards_R = _group_statistics(inputs), inputs.rewards_R.double()
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
    others_R = group.centered_R * group.count_R / (group.count_R - 1).clamp_min(1)
    alone_R = (group.count_R == 1) & rewards_R.isfinite()
    return _spread(inputs, torch.where(alone_R, rewards_R, others_R))


@estimator("reinforce_baseline")
def reinforce_baseline(inputs: AdvantageInputs) -> torch.Tensor:
    """r - group mean, whitened over the sampled tokens of the batch (Hu et al., "REINFORCE++", 2025)."""
    advantages_ST = _spread(inputs, _group_statistics(inputs).centered_R)
    present_S1 = inputs.rewards_R.isfinite()[inputs.rollout_S][:, None]
    return advantages_ST if inputs.no_whiten else whiten(advantages_ST, inputs.mask_ST & present_S1)


def whiten(values_ST: torch.Tensor, mask_ST: torch.Tensor) -> torch.Tensor:
    """(values - mean) / sqrt(max(variance, 1e-8)) over all tokens on the mask, population variance; 0 off the mask."""
    tokens = mask_ST.sum().clamp_min(1)
    centered_ST = torch.where(mask_ST, values_ST - torch.where(mask_ST, values_ST, 0).sum() / tokens, 0)
    variance = centered_ST.square().sum() / tokens
    return centered_ST * variance.clamp_min(_MIN_VARIANCE).rsqrt()


def discounted_returns(rewards_ST: torch.Tensor, gamma: float) -> torch.Tensor:
    """G_t = r_t + gamma * G_(t+1) over positions, by doubling the summed span: log2(T) steps instead of T."""
    returns_ST, span = rewards_ST, 1
    while span < rewards_ST.shape[1]:
        returns_ST = returns_ST + gamma**span * pad(returns_ST[:, span:], (0, span))
        span *= 2
    return returns_ST


def _token_rewards(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Reward of each token, the rollout's at the last sampled token of every segment, and the tokens whose reward is known."""
    rewards_S1 = inputs.rewards_R.double()[inputs.rollout_S][:, None]
    mask_ST = inputs.mask_ST & rewards_S1.isfinite()
    rewards_ST = torch.where(_last_token(mask_ST), rewards_S1, 0)
    if inputs.token_rewards_ST is not None:
        rewards_ST = rewards_ST + torch.where(mask_ST, inputs.token_rewards_ST.double(), 0)
    return rewards_ST, mask_ST


def _last_token(mask_ST: torch.Tensor) -> torch.Tensor:
    """Bool (S, T), true at the last position of each row that is on the mask."""
    remaining_ST = mask_ST.flip(1).cumsum(1).flip(1)
    return mask_ST & (remaining_ST == 1)


def _spread(inputs: AdvantageInputs, advantages_R: torch.Tensor) -> torch.Tensor:
    """One value per rollout to all sampled tokens of its segments."""
    return inputs.mask_ST * advantages_R[inputs.rollout_S][:, None]


class GroupStatistics(NamedTuple):
    """Per rollout: reward minus its group's mean (0 where missing), the group's std with n - 1 (0 below two rewards), and
    the number of its rewards."""

    centered_R: torch.Tensor
    std_R: torch.Tensor
    count_R: torch.Tensor


def _group_statistics(inputs: AdvantageInputs) -> GroupStatistics:
    rewards_R = inputs.rewards_R.double()
    groups, index_R = inputs.group_R.unique(return_inverse=True)
    present_R = rewards_R.isfinite()
    # Measured from the group's lowest reward, equal rewards centre to exactly 0, not to rounding noise over epsilon.
    lowest_G = rewards_R.new_full((len(groups),), torch.inf)
    lowest_G = lowest_G.scatter_reduce(0, index_R, torch.where(present_R, rewards_R, torch.inf), "amin")
    height_R = torch.where(present_R, rewards_R - lowest_G[index_R], 0)

    def group_sum(values_R: torch.Tensor) -> torch.Tensor:
        return values_R.new_zeros(len(groups)).index_add(0, index_R, values_R)

    count_G = group_sum(present_R.double())
    mean_G = group_sum(height_R) / count_G.clamp_min(1)
    centered_R = torch.where(present_R, height_R - mean_G[index_R], 0)
    std_G = (group_sum(centered_R.square()) / (count_G - 1).clamp_min(1)).sqrt()
    return GroupStatistics(centered_R, std_G[index_R], count_G[index_R])
