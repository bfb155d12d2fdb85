"""The only place that touches NeMo AutoModel (0.7) and its private parts; every entry has a contract test.

AutoModel brings its model classes, their loading and expert parallelism; sharding and recomputation are ours
(`engine/train/model.py`), so that all models take one path. Imported lazily: the import takes ten seconds and more.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

# shard(model, experts_mesh): shards the decoder layers in place; experts_mesh is None without expert parallelism.
Shard = Callable[[nn.Module, DeviceMesh | None], None]
Choose = Callable[[torch.Tensor], torch.Tensor]


def automodel_has_class(path: str) -> tuple[bool, str]:
    """Whether AutoModel has a class of its own for the model at `path`, and why not."""
    if importlib.util.find_spec("nemo_automodel") is None:
        return False, "nemo_automodel is not installed: install the gpu extra"
    from nemo_automodel._transformers.registry import ModelRegistry
    from transformers import AutoConfig

    names = AutoConfig.from_pretrained(path).architectures or ["a model without a name"]
    return names[0] in ModelRegistry.model_arch_name_to_cls, f"NeMo AutoModel has no class for {names[0]}"


def automodel_causal_lm(path: str, ep_size: int, attention: str, grouped_experts: bool, shard: Shard) -> nn.Module:
    """A causal LM with fp32 masters in AutoModel's own class; every rank calls it.

    Built on the meta device, split by `shard`, then loaded, so that no rank ever holds the whole model.
    grouped_experts  torch's grouped matrix product, which needs bf16 on CUDA; else one expert after the other
    """
    import torch.distributed as dist
    from nemo_automodel import NeMoAutoModelForCausalLM
    from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config
    from nemo_automodel.components.distributed.mesh import ParallelismSizes
    from nemo_automodel.components.models.common.utils import BackendConfig
    from torch.distributed.fsdp import MixedPrecisionPolicy

    setup = DistributedSetup.build(
        # Without a compute type here AutoModel casts nothing; the real policy is that of `shard`.
        strategy=FSDP2Config(mp_policy=MixedPrecisionPolicy()),
        parallelism_sizes=ParallelismSizes(tp_size=1, cp_size=1, pp_size=1, ep_size=ep_size),
        world_size=dist.get_world_size(),
    )
    backend = BackendConfig(
        attn=attention, linear="torch", rms_norm="torch_fp32", dispatcher="torch", rope_fusion=False,
        experts="torch_mm" if grouped_experts else "torch", gate_precision="float32",
    )  # fmt: skip
    with _sharded_by(shard):
        causal_lm = NeMoAutoModelForCausalLM.from_pretrained(
            path, torch_dtype=torch.float32, attn_implementation=attention, use_liger_kernel=False, backend=backend,
            distributed_setup=setup,
        )  # fmt: skip
    for _, gate in gates(causal_lm):
        gate.aux_loss_coeff = 0.0  # in training mode it would add the balance loss of pre-training to every gradient
    return causal_lm


@contextmanager
def _sharded_by(shard: Shard) -> Iterator[None]:
    """Let AutoModel call `shard` where it would split a model itself. RuntimeError for models that insist on their own way."""
    from nemo_automodel.components.distributed import model_parallelizer
    from nemo_automodel.components.moe.parallelizer import apply_ep

    class Ours(model_parallelizer.ModelParallelizer):
        called = False

        def parallelize(self, model: nn.Module, mesh_context: Any, /) -> nn.Module:
            self.called = True
            moe_mesh = mesh_context.moe_mesh if mesh_context.ep_size > 1 else None
            if moe_mesh is not None:
                apply_ep(model, moe_mesh["ep"], moe_mesh=moe_mesh)
            shard(model, None if moe_mesh is None else moe_mesh["ep_shard"])
            return model

    before, ours = model_parallelizer._DEFAULT_PARALLELIZER, Ours()
    model_parallelizer._DEFAULT_PARALLELIZER = ours
    try:
        yield
    finally:
        model_parallelizer._DEFAULT_PARALLELIZER = before
    if not ours.called:
        raise RuntimeError("NeMo AutoModel parallelizes this model in its own way, which this engine cannot drive")


def gates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """AutoModel's routers by module name: called as gate(hidden, token_mask, cp_mesh), their ids go through `replace_choice`."""
    for name, module in model.named_modules():
        if type(module).__name__ == "Gate" and hasattr(module, "router_replay"):
            yield name, module


def replace_choice(gate: nn.Module, choose: Choose) -> None:
    """Let `choose(live ids (N, k))` give the ids of every forward pass; the gate gathers their weights from its live scores."""
    gate.router_replay = _Chooser(choose)


class _Chooser:
    """Stands in for AutoModel's RouterReplay, which cannot keep single rows."""

    def __init__(self, choose: Choose) -> None:
        self.apply = choose


def hf_tensors(model: nn.Module, name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors of one whole parameter as checkpoints spell them, by the adapter of an AutoModel class."""
    return model.state_dict_adapter.convert_single_tensor_to_hf(name, tensor)
