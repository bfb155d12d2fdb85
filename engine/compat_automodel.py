"""The only place that touches NeMo AutoModel (0.7) and its private parts; every entry has a contract test.

AutoModel brings its model classes, their loading and expert parallelism; sharding and recomputation are ours
(`engine/train/model.py`), so that all models take one path. Imported lazily: the import takes ten seconds and more.
"""

import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

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
    from nemo_automodel import NeMoAutoModelForCausalLM
    from nemo_automodel.components.distributed import model_parallelizer
    from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config
    from nemo_automodel.components.distributed.mesh import ParallelismSizes
    from nemo_automodel.components.models.common.utils import BackendConfig

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
    ours = _sharding(shard)
    # Models that insist on splitting themselves have a parallelizer of their own.
    with patch.object(model_parallelizer, "_DEFAULT_PARALLELIZER", ours):
        causal_lm = NeMoAutoModelForCausalLM.from_pretrained(
            path, torch_dtype=torch.float32, attn_implementation="sdpa", use_liger_kernel=False, backend=backend,
            distributed_setup=setup,
        )  # fmt: skip
    if not ours.called:
        raise RuntimeError("NeMo AutoModel parallelizes this model in its own way, which this engine cannot drive")
    for _, gate in gates(causal_lm):
        gate.aux_loss_coeff = 0.0  # in training mode it would add the balance loss of pre-training to every gradient
    return causal_lm


def _sharding(shard: Shard) -> Any:
    """A parallelizer for AutoModel that splits the experts as AutoModel does and leaves the rest to `shard`."""
    from nemo_automodel.components.distributed.parallelizer import ModelParallelizer
    from nemo_automodel.components.moe.parallelizer import apply_ep

    class Sharding(ModelParallelizer):
        called = False

        def parallelize(self, model: nn.Module, mesh_context: Any, /) -> nn.Module:
            self.called = True
            moe_mesh = mesh_context.moe_mesh if mesh_context.ep_size > 1 else None
            if moe_mesh is not None:
                apply_ep(model, moe_mesh["ep"], moe_mesh=moe_mesh)
            shard(model, None if moe_mesh is None else moe_mesh["ep_shard"])
            return model

    return Sharding()


def gates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """AutoModel's routers by module name: called as gate(hidden, token_mask, cp_mesh), their ids go through `replace_choice`."""
    for name, module in model.named_modules():
        if type(module).__name__ == "Gate" and hasattr(module, "router_replay"):
            yield name, module


_GROUPED = {"gate_and_up_projs": "gate_up_proj", "down_projs": "down_proj"}


def hf_tensors(adapter: Any, name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A whole parameter of AutoModel's class as transformers spells it, experts still fused; by the model's adapter.

    Grouped experts are turned here, as views (E, out, in): the adapter would copy each and empty CUDA's cache each time.
    """
    prefix, _, kind = name.rpartition(".")
    plain = getattr(adapter, "_expert_path_segment", None) == "mlp.experts" and getattr(adapter, "_is_gated_moe", False)
    if plain and kind in _GROUPED:
        return [(f"{prefix}.{_GROUPED[kind]}", tensor.transpose(1, 2))]
    return adapter.convert_single_tensor_to_hf(name, tensor)


def replace_choice(gate: nn.Module, choose: Choose) -> None:
    """Let `choose(live ids (N, k))` give the ids of every forward pass; the gate gathers their weights from its live scores.

    In the place of AutoModel's RouterReplay, which cannot keep single rows.
    """
    gate.router_replay = SimpleNamespace(apply=choose)
