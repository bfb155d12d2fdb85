"""AdamW, the learning-rate schedule and the global gradient norm."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from engine.config import AdamConfig


class LocalAdamW(torch.optim.AdamW):
    """AdamW over this rank's own parts, without DTensor's dispatch; skipped where `found_inf`, gradients over `grad_scale`."""

    grad_scale: torch.Tensor | None = None
    found_inf: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self._update(group, [p for p in group["params"] if p.grad is not None])

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        states = [self.state[p] for p in parameters]
        self._adamw(group, [_local(p) for p in parameters], [_local(p.grad) for p in parameters], states)

    def _adamw(self, group: dict[str, Any], weights: list[torch.Tensor], grads: list[torch.Tensor], states: list[Any]) -> None:
        beta1, beta2 = group["betas"]
        moments = ([_local(state[name]) for state in states] for name in ("exp_avg", "exp_avg_sq"))
        adamw(weights, grads, *moments, [], [state["step"] for state in states], fused=True, grad_scale=self.grad_scale,
              found_inf=self.found_inf, amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"],
              weight_decay=group["weight_decay"], eps=group["eps"], maximize=False)  # fmt: skip


class HostAdamW(LocalAdamW):
    """Its moments live in host memory, where it computes too; parameters and gradients visit it one by one."""

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        # torch would bring them here without waiting for the device, and compute with what has not arrived.
        self.grad_scale, self.found_inf = (t if t is None else t.cpu() for t in (self.grad_scale, self.found_inf))
        for p in parameters:
            state = self.state[p]
            if state["exp_avg"].device.type != "cpu":  # a checkpoint was loaded: torch puts its state beside the parameter
                state |= {name: tensor.cpu() for name, tensor in state.items()}
            weight = _local(p).cpu()
            self._adamw(group, [weight], [_local(p.grad).cpu()], [state])
            _local(p).copy_(weight)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def build_adamw(parameters: Iterable[nn.Parameter], config: AdamConfig, on_host: bool = False) -> torch.optim.AdamW:
    """Fused AdamW over (sharded) fp32 masters; vectors (norms, biases) get no weight decay."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": members, "weight_decay": decay}
        for decay, members in (
            (config.weight_decay, [p for p in trained if p.ndim >= 2]), (0.0, [p for p in trained if p.ndim < 2]),
        )
        if members
    ]  # fmt: skip
    kind = HostAdamW if on_host else LocalAdamW
    optimizer = kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=not on_host)
    # Otherwise a checkpoint before the first step creates the moments by a step of its own, which counts.
    for p in trained:
        device = torch.device("cpu") if on_host else p.device
        moments = {name: torch.zeros_like(p, requires_grad=False, device=device) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=device), **moments}
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


def grad_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Norm of all gradients over all parameters and ranks; those of experts that ranks share are made a mean over all first."""
    grads = [p.grad for p in parameters if p.grad is not None]
    for grad in grads:
        mesh = getattr(grad, "device_mesh", None)
        if mesh is not None and "ep" in (mesh.mesh_dim_names or ()):
            # FSDP took the mean over the ranks that hold the same experts; those with others added their tokens' gradients.
            _local(grad).div_(mesh.size(mesh.mesh_dim_names.index("ep")))
    norms = torch._foreach_norm([_local(grad) for grad in grads])
    # What several ranks hold each of them counts in part.
    square = torch.stack(torch._foreach_div(norms, [math.sqrt(_holders(grad)) for grad in grads])).square().sum()
    if dist.is_initialized():
        dist.all_reduce(square)
    return square.sqrt()


def _holders(tensor: torch.Tensor) -> float:
    """Ranks that hold the same part of it."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if not isinstance(tensor, DTensor):
        return world
    return world / math.prod(tensor.device_mesh.size(i) for i, how in enumerate(tensor.placements) if not how.is_replicate())


def update(optimizer: LocalAdamW, parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Step with the gradients scaled so that their norm is at most `max_norm`, and clear them; returns the norm before, and
    waits for nothing. A norm that is not finite changes no weight, for one bad batch would ruin them and every later
    checkpoint."""
    norm = grad_norm(parameters)
    optimizer.grad_scale = ((norm + 1e-6) / max_norm).clamp_min(1.0)
    optimizer.found_inf = (~norm.isfinite()).float()
    optimizer.step()
    optimizer.zero_grad()
    return norm
