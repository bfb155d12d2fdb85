"""Importance-sampling correction of the gap between the policy that sampled (mu) and the trainer's policy (old).

Shapes: S segments, T positions. Everything here is detached and in float64, so that a threshold decides the same way
whatever the padding or the micro-batch.
"""

from dataclasses import dataclass

import torch

from engine.algo.sums import Sums, quotients

MAX_LOG_RATIO = 30.0
_PROB_FLOOR = 1e-6


@dataclass(frozen=True)
class CorrectionRule:
    """level: off | token | seq | geo, mode: mask | clip | trunc, gating: ratio | binary_kl | tv; [low, high] is kept.

    Only combinations that `names.forbidden_correction` allows mean something.
    """

    level: str = "off"
    mode: str = "mask"
    gating: str = "ratio"
    low: float = 0.5
    high: float = 5.0


@dataclass(frozen=True)
class CorrectionResult:
    """Everything has shape (S, T) and is 0 or false off the mask.

    weights_ST  factor of the policy loss: 1 at level off, 0 where gated out
    ratio_ST    exp(old - mu) before any gate
    below_ST    tokens whose unit (token or segment) has a statistic below low; above_ST: above high
    masked_ST   tokens gated out
    """

    rule: CorrectionRule
    weights_ST: torch.Tensor
    ratio_ST: torch.Tensor
    below_ST: torch.Tensor
    above_ST: torch.Tensor
    masked_ST: torch.Tensor


@torch.no_grad()
def importance_weights(
    old_logprobs_ST: torch.Tensor, rollout_logprobs_ST: torch.Tensor, mask_ST: torch.Tensor, rule: CorrectionRule
) -> CorrectionResult:
    """Weights w = exp(old - mu), log clamped to +-30, gated by `rule`.

    mask: units with low <= statistic <= high keep their w, others get 0. clip: w clamped to [low, high]. trunc:
    min(w, high). The units of levels seq and geo are segments. Masked tokens are 0 here but stay in every denominator.
    """
    old_ST = torch.where(mask_ST, old_logprobs_ST.double(), 0)
    rollout_ST = torch.where(mask_ST, rollout_logprobs_ST.double(), 0)
    log_ratio_ST = (old_ST - rollout_ST).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_ST = mask_ST * log_ratio_ST.exp()
    nothing_ST = torch.zeros_like(mask_ST)
    if rule.level == "off":
        return CorrectionResult(rule, mask_ST.double(), ratio_ST, nothing_ST, nothing_ST, nothing_ST)

    if rule.gating == "ratio":
        statistic_ST = _ratio_statistic(log_ratio_ST, mask_ST, rule.level)
    else:
        divergence_ST = DIVERGENCES[rule.gating](old_ST, rollout_ST)
        statistic_ST = divergence_ST if rule.level == "token" else _segment_mean(divergence_ST, mask_ST)
    below_ST = mask_ST & (statistic_ST < rule.low)
    above_ST = mask_ST & (statistic_ST > rule.high)
    masked_ST = (below_ST | above_ST) if rule.mode == "mask" else nothing_ST
    lower = rule.low if rule.mode == "clip" else -torch.inf
    bounded_ST = ratio_ST if rule.mode == "mask" else mask_ST * ratio_ST.clamp(lower, rule.high)
    return CorrectionResult(rule, bounded_ST * ~masked_ST, ratio_ST, below_ST, above_ST, masked_ST)


def _ratio_statistic(log_ratio_ST: torch.Tensor, mask_ST: torch.Tensor, level: str) -> torch.Tensor:
    if level == "token":
        return log_ratio_ST.exp()
    if level == "geo":
        return _segment_mean(log_ratio_ST, mask_ST).exp()
    total_S1 = (mask_ST * log_ratio_ST).sum(1, keepdim=True)
    return total_S1.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(log_ratio_ST)


def _segment_mean(values_ST: torch.Tensor, mask_ST: torch.Tensor) -> torch.Tensor:
    total_S1 = (mask_ST * values_ST).sum(1, keepdim=True)
    return (total_S1 / mask_ST.sum(1, keepdim=True).clamp_min(1)).expand_as(values_ST)


def binary_kl(old_ST: torch.Tensor, rollout_ST: torch.Tensor) -> torch.Tensor:
    """KL(mu || old) of "this token or another", probabilities clamped to [1e-6, 1 - 1e-6]; never below 0."""
    p_ST = rollout_ST.exp().clamp(_PROB_FLOOR, 1 - _PROB_FLOOR)
    q_ST = old_ST.exp().clamp(_PROB_FLOOR, 1 - _PROB_FLOOR)
    divergence_ST = p_ST * (p_ST / q_ST).log() + (1 - p_ST) * ((1 - p_ST) / (1 - q_ST)).log()
    # The two terms cancel when p = q up to rounding; a lower bound of 0 must not refuse perfect agreement.
    return divergence_ST.clamp_min(0)


def total_variation(old_ST: torch.Tensor, rollout_ST: torch.Tensor) -> torch.Tensor:
    """|exp(mu) - exp(old)|: total variation of "this token or another"."""
    return (rollout_ST.exp() - old_ST.exp()).abs()


DIVERGENCES = {"binary_kl": binary_kl, "tv": total_variation}


@torch.no_grad()
def correction_metrics(result: CorrectionResult, advantages_ST: torch.Tensor, mask_ST: torch.Tensor) -> Sums:
    """Sums behind the `is/` metrics; only those that the rule's level, mode and bounds can move."""
    rule, weights_ST = result.rule, result.weights_ST
    sums = {"is/tokens": mask_ST.sum(), "is/ratio": result.ratio_ST.sum()}
    if rule.level == "off":
        return {key: value.double() for key, value in sums.items()}
    sums["is/kept_tokens"] = (mask_ST & ~result.masked_ST).sum()
    sums["is/weight"], sums["is/weight_squared"] = weights_ST.sum(), weights_ST.square().sum()
    if rule.mode == "mask":
        gradient_ST = advantages_ST.double().abs() * result.ratio_ST
        sums["is/gradient"] = gradient_ST.sum()
        sums["is/kept_gradient"] = (gradient_ST * ~result.masked_ST).sum()
        sums["is/masked"], sums["is/masked_high"] = result.masked_ST.sum(), result.above_ST.sum()
        if rule.gating == "ratio" and rule.low > 0:  # else nothing can lie below
            sums["is/masked_low"] = result.below_ST.sum()
    if rule.mode == "clip":
        sums["is/clipped"] = (result.below_ST | result.above_ST).sum()
    if rule.mode == "trunc":
        sums["is/truncated"] = result.above_ST.sum()
    if rule.level in ("seq", "geo"):
        sums["is/segments"], sums["is/masked_segments"] = mask_ST.any(1).sum(), result.masked_ST.any(1).sum()
    return {key: value.double() for key, value in sums.items()}


_FRACTIONS = {
    "is/ratio_mean": ("is/ratio", "is/tokens"),
    "is/masked_frac": ("is/masked", "is/tokens"),
    "is/masked_low_frac": ("is/masked_low", "is/tokens"),
    "is/masked_high_frac": ("is/masked_high", "is/tokens"),
    "is/clipped_frac": ("is/clipped", "is/tokens"),
    "is/truncated_frac": ("is/truncated", "is/tokens"),
    "is/masked_seq_frac": ("is/masked_segments", "is/segments"),
    "is/kept_grad_frac": ("is/kept_gradient", "is/gradient"),
}


def finish_correction(sums: Sums) -> dict[str, float]:
    """The `is/` metrics. Shares are of trained tokens, masked_seq_frac of segments with trained tokens.

    ess_frac = (sum w)^2 / (n sum w^2) over the n kept tokens, w the weight in the loss.
    kept_grad_frac = share of sum |A| exp(old - mu) over trained tokens that the mask lets through.
    """
    values = quotients(sums, _FRACTIONS)
    if "is/weight" in sums and float(sums["is/weight_squared"]) > 0:
        ess = sums["is/weight"].square() / (sums["is/kept_tokens"] * sums["is/weight_squared"])
        values["is/ess_frac"] = float(ess)
    return values
