"""The training objective: every term of it is put together in `policy_objective`.

Shapes: S segments, T positions; `logprobs_ST[s, t]` is the log-prob of token t, log-probs and entropy in nats. A policy
loss or an aggregation is one function and one registry line here, and its name in `names.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.algo.correction import MAX_LOG_RATIO, CorrectionRule, correction_metrics, finish_correction, importance_weights
from engine.algo.kl import kl_estimate
from engine.algo.sums import Sums, quotients


@dataclass(frozen=True)
class PolicySettings:
    """clip_low, clip_high: ppo and gspo clip the ratio to [1 - low, 1 + high], cispo caps it at high; dual_clip: bound > 1
    of ppo for negative advantages.

    entropy_coef None or 0: no bonus. kl_coef 0: no KL in the loss; kl_estimator: k1 | k2 | k3; kl_to_rollout: measured
    against the sampler's log-probs, else against the reference model's.
    Only clip ranges that `names.forbidden_loss` allows make sense.
    """

    loss_mode: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: str = "token-mean"
    entropy_coef: float | None = None
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_to_rollout: bool = False
    correction: CorrectionRule = field(default_factory=CorrectionRule)


@dataclass(frozen=True)
class Denominators:
    """Counts over the whole optimizer step: all micro-batches of all ranks.

    tokens           trained tokens, those that the IS correction masks included
    rows             segments with trained tokens
    prompts          prompts with trained tokens
    prompt_tokens_S  trained tokens of the prompt that each row of this micro-batch belongs to
    """

    tokens: int
    rows: int = 0
    prompts: int = 0
    prompt_tokens_S: Tensor | None = None


@dataclass(frozen=True)
class PolicyLoss:
    """Loss per token (S, T), and which tokens have their gradient cut by the clip range."""

    loss_ST: Tensor
    clipped_ST: Tensor


def ppo(logprobs_ST: Tensor, old_ST: Tensor, advantages_ST: Tensor, mask_ST: Tensor, settings: PolicySettings) -> PolicyLoss:
    """-min(r A, clip(r) A), and at most -dual_clip * A where A < 0; r = exp(pi - old), its log clamped to +-30.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017; dual clip: Ye et al. 2020.
    """
    ratio_ST = (logprobs_ST - old_ST).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped_ST = ratio_ST * advantages_ST
    clipped_ST = ratio_ST.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_ST
    gain_ST = torch.minimum(unclipped_ST, clipped_ST)
    if settings.dual_clip is not None:
        bounded_ST = torch.maximum(gain_ST, settings.dual_clip * advantages_ST)
        gain_ST = torch.where(advantages_ST < 0, bounded_ST, gain_ST)
    return PolicyLoss(-gain_ST, clipped_ST=mask_ST & (clipped_ST < unclipped_ST))


def cispo(logprobs_ST: Tensor, old_ST: Tensor, advantages_ST: Tensor, mask_ST: Tensor, settings: PolicySettings) -> PolicyLoss:
    """-sg[min(r, clip_high)] A log pi: the ratio is a capped weight and no token loses its gradient.

    MiniMax, "MiniMax-M1", 2025; clip_high is the ceiling itself, at least 1.
    """
    ratio_ST = (logprobs_ST - old_ST).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss_ST = -ratio_ST.clamp_max(settings.clip_high) * advantages_ST * logprobs_ST
    return PolicyLoss(loss_ST, clipped_ST=mask_ST & (ratio_ST > settings.clip_high))


def gspo(logprobs_ST: Tensor, old_ST: Tensor, advantages_ST: Tensor, mask_ST: Tensor, settings: PolicySettings) -> PolicyLoss:
    """-min(s A, clip(s) A) with s = exp(sg[mean over the segment of log r] + log pi - sg[log pi]).

    The value of s is the segment's geometric mean ratio, its gradient that of each token (GSPO-token: Zheng et al., "Group
    Sequence Policy Optimization", 2025).
    """
    log_ratio_ST = (logprobs_ST - old_ST).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    mean_S1 = (mask_ST * log_ratio_ST).sum(1, keepdim=True) / mask_ST.sum(1, keepdim=True).clamp_min(1)
    ratio_ST = (mean_S1 + logprobs_ST - logprobs_ST.detach()).exp()
    unclipped_ST = ratio_ST * advantages_ST
    clipped_ST = ratio_ST.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_ST
    return PolicyLoss(-torch.minimum(unclipped_ST, clipped_ST), clipped_ST=mask_ST & (clipped_ST < unclipped_ST))


def token_mean(loss_ST: Tensor, mask_ST: Tensor, denominators: Denominators) -> Tensor:
    """Every token of the optimizer step weighs the same."""
    return torch.where(mask_ST, loss_ST, 0).sum() / max(denominators.tokens, 1)


def seq_mean_token_mean(loss_ST: Tensor, mask_ST: Tensor, denominators: Denominators) -> Tensor:
    """Every segment weighs the same, and in it every token."""
    sums_S = torch.where(mask_ST, loss_ST, 0).sum(1)
    return (sums_S / mask_ST.sum(1).clamp_min(1)).sum() / max(denominators.rows, 1)


def prompt_mean_token_mean(loss_ST: Tensor, mask_ST: Tensor, denominators: Denominators) -> Tensor:
    """Every prompt weighs the same, and in it every token of all its segments in the optimizer step."""
    sums_S = torch.where(mask_ST, loss_ST, 0).sum(1)
    return (sums_S / denominators.prompt_tokens_S.clamp_min(1)).sum() / max(denominators.prompts, 1)


POLICY_LOSSES: dict[str, Callable[..., PolicyLoss]] = {"ppo": ppo, "cispo": cispo, "gspo": gspo}
AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Denominators], Tensor]] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": seq_mean_token_mean,
    "prompt-mean-token-mean": prompt_mean_token_mean,
}


def policy_objective(
    logprobs_ST: Tensor,
    old_logprobs_ST: Tensor | None,
    rollout_logprobs_ST: Tensor,
    advantages_ST: Tensor,
    mask_ST: Tensor,
    entropy_ST: Tensor | None,
    settings: PolicySettings,
    denominators: Denominators,
    reference_logprobs_ST: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Loss of one micro-batch, to be minimised, and its metric sums for `finish_policy`.

    logprobs_ST          current policy, with gradient; float32 or float64
    old_logprobs_ST      trainer policy at the start of the batch; None: the current policy, detached (ratio 1)
    rollout_logprobs_ST  the sampler's own
    mask_ST              trained tokens: sampled and not over age. Values elsewhere are never read
    entropy_ST           required, with gradient, if settings.entropy_coef is not 0; else optional, for the metric
    reference_logprobs_ST  frozen model; required for a KL in the loss that is not taken to the rollout policy

    The losses of all micro-batches and ranks add up to the loss of the optimizer step (where gradients are averaged
    over ranks, multiply by their number). Without trained tokens it is 0 with zero gradients.
    """
    # Selected, not multiplied: 0 * inf or 0 * nan in a padding position would reach the gradient.
    logprobs_ST = torch.where(mask_ST, logprobs_ST, 0)
    old_ST = logprobs_ST.detach() if old_logprobs_ST is None else torch.where(mask_ST, old_logprobs_ST, 0)
    advantages_ST = torch.where(mask_ST, advantages_ST, 0).to(logprobs_ST.dtype)

    correction = importance_weights(old_ST, rollout_logprobs_ST, mask_ST, settings.correction)
    policy = POLICY_LOSSES[settings.loss_mode](logprobs_ST, old_ST, advantages_ST, mask_ST, settings)
    policy_ST = correction.weights_ST.to(logprobs_ST.dtype) * policy.loss_ST
    objective_ST = policy_ST
    if settings.entropy_coef:
        if entropy_ST is None:
            raise ValueError("an entropy bonus needs entropy_ST: compute it in the forward pass, or set entropy_coef 0")
        objective_ST = objective_ST - settings.entropy_coef * torch.where(mask_ST, entropy_ST, 0)
    loss = AGGREGATIONS[settings.aggregation](objective_ST, mask_ST, denominators)
    sums: Sums = {}
    if settings.kl_coef:
        reference_ST = rollout_logprobs_ST if settings.kl_to_rollout else reference_logprobs_ST
        if reference_ST is None:
            raise ValueError("a KL in the loss needs reference_logprobs_ST: load a reference model, or set kl_coef 0")
        reference_ST = torch.where(mask_ST, reference_ST, 0)
        kl_ST = mask_ST * kl_estimate(logprobs_ST, reference_ST, settings.kl_estimator, settings.kl_to_rollout)
        loss = loss + settings.kl_coef * token_mean(kl_ST, mask_ST, denominators)
        sums = kl_sums(kl_ST, mask_ST)

    sums |= {"loss/tokens": mask_ST.sum().double(), "loss/policy_sum": policy_ST.detach().double().sum()}
    if entropy_ST is not None:
        sums["loss/entropy_sum"] = torch.where(mask_ST, entropy_ST.detach().double(), 0).sum()
    if old_logprobs_ST is not None:
        sums["loss/clipped"] = policy.clipped_ST.sum().double()
    return loss, sums | correction_metrics(correction, advantages_ST, mask_ST)


def kl_sums(kl_ST: Tensor, mask_ST: Tensor) -> Sums:
    """Sums behind `loss/kl`, the mean estimate over trained tokens."""
    return {"loss/kl_sum": (mask_ST * kl_ST.detach()).double().sum(), "loss/kl_tokens": mask_ST.sum().double()}


def value_loss(
    values_ST: Tensor, old_values_ST: Tensor, returns_ST: Tensor, mask_ST: Tensor, clip: float, denominators: Denominators
) -> tuple[Tensor, Sums]:
    """The critic's objective, 0.5 max((V - R)^2, (V_old + clamp(V - V_old, +-clip) - R)^2), as a token mean; metric sums."""
    values_ST = torch.where(mask_ST, values_ST, 0)
    near_ST = old_values_ST + (values_ST - old_values_ST).clamp(-clip, clip)
    plain_ST, clipped_ST = (values_ST - returns_ST).square(), (near_ST - returns_ST).square()
    loss_ST = 0.5 * torch.where(mask_ST, torch.maximum(plain_ST, clipped_ST), 0)
    sums = {
        "loss/value_sum": loss_ST.detach().double().sum(),
        "loss/value_tokens": mask_ST.sum().double(),
        "loss/value_clipped": (mask_ST & (clipped_ST > plain_ST)).sum().double(),
    }
    return token_mean(loss_ST, mask_ST, denominators), sums


_FRACTIONS = {
    "loss/value": ("loss/value_sum", "loss/value_tokens"),
    "loss/value_clip_frac": ("loss/value_clipped", "loss/value_tokens"),
    "loss/kl": ("loss/kl_sum", "loss/kl_tokens"),
    "loss/policy": ("loss/policy_sum", "loss/tokens"),
    "loss/entropy": ("loss/entropy_sum", "loss/tokens"),
    "loss/clip_frac": ("loss/clipped", "loss/tokens"),
}


def finish_policy(sums: Sums) -> dict[str, float]:
    """`loss/` metrics as plain means over trained tokens, and the `is/` metrics."""
    return quotients(sums, _FRACTIONS) | finish_correction(sums)
