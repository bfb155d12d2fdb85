"""AdamW, the learning-rate schedule and the global gradient norm."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from engine.config import AdamConfig


class HostAdamW(torch.optim.AdamW):
    """AdamW whose moments live in host memory, where it computes too; parameters and gradients visit it one by one."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if state["exp_avg"].device.type != "cpu":  # a checkpoint was loaded: torch puts its state beside the parameter
                    state |= {name: tensor.cpu() for name, tensor in state.items()}
                weight = _local(p).cpu()
                adamw([weight], [_local(p.grad).cpu()], [_local(state["exp_avg"])], [_local(state["exp_avg_sq"])], [],
                      [state["step"]], fused=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"],
                      weight_decay=group["weight_decay"], eps=group["eps"], maximize=False)  # fmt: skip
                _local(p).copy_(weight)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def build_adamw(parameters: Iterable[nn.Parameter], config: AdamConfig, on_host: bool = False) -> torch.optim.AdamW:
    """Fused AdamW over (sharded) fp32 masters; vectors (norms, biases) get no weight decay."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": members, "weight_decay": config.weight_decay if members[0].ndim >= 2 else 0.0}
        for members in [*_by_mesh(p for p in trained if p.ndim >= 2), *_by_mesh(p for p in trained if p.ndim < 2)]
    ]
    kind = HostAdamW if on_host else torch.optim.AdamW
    optimizer = kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=not on_host)
    # Otherwise a checkpoint before the first step creates the moments by a step of its own, which counts.
    for p in trained:
        device = torch.device("cpu") if on_host else p.device
        moments = {name: torch.zeros_like(p, requires_grad=False, device=device) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=device), **moments}
    return optimizer


def _by_mesh(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Tensors of one mesh together: fused operations take no others. Experts have a mesh of their own."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


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
    """Scale all gradients so that their norm over all parameters and ranks is at most `max_norm`; returns the norm before.

    Those of experts that ranks share are made a mean over all ranks first.
    """
    groups = _by_mesh([p.grad for p in parameters if p.grad is not None])
    for grads in groups:
        mesh = getattr(grads[0], "device_mesh", None)
        if mesh is not None and "ep" in (mesh.mesh_dim_names or ()):
            # FSDP took the mean over the ranks that hold the same experts; those with others added their tokens' gradients.
            torch._foreach_div_(grads, mesh.size(mesh.mesh_dim_names.index("ep")))
    norms = [get_total_norm(grads) for grads in groups]
    norm = torch.stack([n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]).norm()
    for grads in groups:
        torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return float(norm)


def update(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Clip, step and clear the gradients; returns the norm before. A norm that is not finite changes no weight, for one bad
    batch would ruin them and every later checkpoint."""
    norm = clip_grad_norm(parameters, max_norm)
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm
