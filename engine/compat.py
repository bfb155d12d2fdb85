"""The only place that touches private or version-dependent API; every entry has a contract test."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def automodel_causal_lm(path: str, dtype: torch.dtype, reduce_dtype: torch.dtype, world: int) -> Any:
    """A causal LM built and sharded over all ranks (FSDP2) by NeMo AutoModel 0.7."""
    from nemo_automodel import NeMoAutoModelForCausalLM
    from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config
    from nemo_automodel.components.distributed.mesh import ParallelismSizes
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    setup = DistributedSetup.build(
        strategy=FSDP2Config(mp_policy=policy), parallelism_sizes=ParallelismSizes(tp_size=1, cp_size=1, pp_size=1), world_size=world
    )
    return NeMoAutoModelForCausalLM.from_pretrained(
        path, torch_dtype=torch.float32, attn_implementation="sdpa", distributed_setup=setup, use_liger_kernel=False
    )
