"""The gap between the trainer's and the sampler's log-probs of the same tokens."""

import torch

from engine.algo.sums import Sums, quotients

_MAX_LOG_RATIO = 30.0

_FRACTIONS = {
    "k3_kl": ("gap/k3", "gap/tokens"),
    "abs_diff": ("gap/abs_diff", "gap/tokens"),
    "bitwise_frac": ("gap/bitwise_equal", "gap/tokens"),
}


@torch.no_grad()
def gap_sums(train_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor) -> Sums:
    """Sums over the tokens where `mask` is true; all three tensors have one shape, log-probs in nats.

    k3 = exp(d) - 1 - d with d = log pi_train - log mu, clamped to +-30: the sampler mu is the reference, so its mean
    estimates KL(mu || pi_train) and is never negative (Schulman, "Approximating KL Divergence", 2020).
    """
    # Selected by zeros, not by index: that would wait for the device to count the tokens.
    train, rollout = (torch.where(mask, logprobs, 0).double() for logprobs in (train_logprobs, rollout_logprobs))
    log_ratio = (train - rollout).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    prob_diff = (train.exp() - rollout.exp()).abs()
    return {
        # expm1 keeps k3 right where exp(d) - 1 would cancel: d = 1e-6 gives 5e-13.
        "gap/k3": (torch.expm1(log_ratio) - log_ratio).sum(),
        "gap/abs_diff": (train - rollout).abs().sum(),
        "gap/bitwise_equal": (mask & (train == rollout)).sum().double(),
        "gap/tokens": mask.sum().double(),
        "gap/prob_diff_max": torch.cat([prob_diff.flatten(), prob_diff.new_zeros(1)]).max(),
    }


def finish_gap(sums: Sums) -> dict[str, float]:
    """`k3_kl`, `abs_diff` (nats), `bitwise_frac` and `max_prob_diff` per token; nothing if no token was measured."""
    values = quotients(sums, _FRACTIONS)
    if values:
        values["max_prob_diff"] = float(sums["gap/prob_diff_max"])
    return values
