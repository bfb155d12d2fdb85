"""The only place that touches private or version-dependent API; every entry has a contract test."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class MoeLayer:
    """One MoE layer of a transformers model.

    layer_id  index among all decoder layers, dense ones included
    router    its forward returns (logits (N, E), weights (N, k), ids (N, k))
    experts   called as experts(hidden (N, D), ids (N, k), weights (N, k))
    weigh     weigh(router, logits, ids) -> weights (N, k) float32, as the router computes them for its own choice
    """

    layer_id: int
    router: nn.Module
    experts: nn.Module
    weigh: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def _softmax_top_k_weights(router: nn.Module, logits_NE: torch.Tensor, ids_Nk: torch.Tensor) -> torch.Tensor:
    weights_Nk = torch.softmax(logits_NE, dim=-1, dtype=torch.float32).gather(-1, ids_Nk)
    return weights_Nk / weights_Nk.sum(-1, keepdim=True) if router.norm_topk_prob else weights_Nk


_ROUTERS = {"Qwen3MoeTopKRouter": _softmax_top_k_weights}


def moe_layers(model: nn.Module) -> list[MoeLayer]:
    """The MoE layers of a transformers model in layer order; empty for dense models and for routers not known here."""
    layers = []
    for name, module in model.named_modules():
        weigh = _ROUTERS.get(type(module).__name__)
        position = re.search(r"\blayers\.(\d+)\.", name)
        if weigh and position:
            experts = model.get_submodule(name.rpartition(".")[0]).experts
            layers.append(MoeLayer(int(position.group(1)), module, experts, weigh))
    return layers


def automodel_available() -> tuple[bool, str]:
    """Whether NeMo AutoModel can build models here, and why not."""
    if not torch.cuda.is_available():
        return False, "NeMo AutoModel builds models on CUDA only and this machine has no CUDA device"
    if importlib.util.find_spec("nemo_automodel") is None:
        return False, "nemo_automodel is not installed: install the gpu extra"
    return True, ""


def automodel_causal_lm(path: str) -> nn.Module:
    """A causal LM with fp32 masters in NeMo AutoModel 0.7's own model class, on the current CUDA device, not sharded."""
    from nemo_automodel import NeMoAutoModelForCausalLM
    from nemo_automodel.components.models.common.utils import BackendConfig

    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch_mm", dispatcher="torch", rope_fusion=False,
        gate_precision="float32",
    )  # fmt: skip
    return NeMoAutoModelForCausalLM.from_pretrained(
        path, torch_dtype=torch.float32, attn_implementation="sdpa", use_liger_kernel=False, backend=backend
    )
