"""Estimates of KL(policy || reference) from the log-probs of sampled tokens, and the controller of its coefficient.

k1, k2, k3 after Schulman, "Approximating KL Divergence", 2020; shapes (S, T), nats.
"""

import torch

_MAX_LOG_RATIO = 30.0
_MAX_ESTIMATE = 10.0
_MAX_CHANGE = 0.2


def kl_estimate(logprobs_ST: torch.Tensor, reference_ST: torch.Tensor, kind: str, sampled_by_reference: bool) -> torch.Tensor:
    """d = log pi - log ref, clamped to +-30. k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d; k2 and k3 at most 10.

    `sampled_by_reference`: the tokens come from the reference (the rollout policy), so the roles in k3 swap:
    exp(d) - 1 - d estimates KL(ref || pi).
    """
    d_ST = (logprobs_ST - reference_ST).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if kind == "k1":
        return d_ST
    if kind == "k2":
        return (d_ST.square() / 2).clamp_max(_MAX_ESTIMATE)
    x_ST = d_ST if sampled_by_reference else -d_ST
    return (torch.expm1(x_ST) - x_ST).clamp_max(_MAX_ESTIMATE)


def adapted_coef(coef: float, kl: float, target: float, rollouts: int, horizon: int) -> float:
    """coef * (1 + clip(kl / target - 1, +-0.2) * rollouts / horizon) (Ziegler et al., "Fine-Tuning Language Models from
    Human Preferences", 2019)."""
    error = min(max(kl / target - 1, -_MAX_CHANGE), _MAX_CHANGE)
    return coef * (1 + error * rollouts / horizon)
