"""AdamW, the learning-rate schedule and the global gradient norm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from engine.config import AdamConfig


def build_adamw(parameters: Iterable[nn.Parameter], config: AdamConfig) -> torch.optim.AdamW:
    """Fused AdamW over (sharded) fp32 masters; vectors (norms, biases) get no weight decay."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
    # Otherwise a checkpoint before the first step creates the moments by a step of its own, which counts.
    for p in trained:
        moments = {name: torch.zeros_like(p, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


def learning_rate_scale(
    step: int, total_steps: int | None, *, shape: str = "constant", warmup_ratio: float = 0.0, min_ratio: float = 0.0
) -> float:
    """Factor of the base learning rate at `step` (0 is the first): linear warm-up, then constant, linear or cosine.

    `min_ratio` is the factor at the last step; without a known end the warm-up has length 0. ValueError if a shape needs
    an end and there is none.
    """
    if total_steps is None:
        if shape != "constant":
            raise ValueError(f"lr_scheduler {shape} needs the number of steps: set train.max_steps")
        return 1.0
    warmup = round(total_steps * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    progress = min(max((step - warmup) / max(total_steps - 1 - warmup, 1), 0.0), 1.0)
    remaining = 1 - progress if shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return min_ratio + (1 - min_ratio) * remaining


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale all gradients so that their norm over all parameters and ranks is at most `max_norm`; returns the norm before."""
    trained = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in trained])
    full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    clip_grads_with_norm_(trained, max_norm, full_norm)
    return float(full_norm)


def update(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Clip, step and clear the gradients; returns the norm before. A norm that is not finite changes no weight, for one bad
    batch would ruin them and every later checkpoint."""
    norm = clip_grad_norm(parameters, max_norm)
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm
