"""How the trainer ranks share the work: samples over dp, every sequence over cp, every matrix over tp, the weights over all."""

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from engine.cluster_rules import split_faults
from engine.config import FsdpConfig
from engine.train.packing import ALONE, SequenceSplit

# What transformers' plans ask for. A norm of single heads sees those of its rank alone, as if a sequence were split: its
# gradient is summed over the ranks.
_STYLES = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "replicated_with_grad_allreduce": partial(SequenceParallel, sequence_dim=1, use_local_output=True),
}


@dataclass(frozen=True)
class Layout:
    """The place of one rank, which is (data_rank x cp + rank in cp) x tp + rank in tp.

    whole      mesh of all ranks: shards what no matrix split touches, the embedding and the head
    layers     mesh of the ranks with the same part of every matrix: shards the decoder layers
    tp         mesh of the ranks that split the matrices of a layer; None: nobody does
    cp         those that split its rows
    data_rank  which share of the samples this rank works on, together with the others of its cp x tp
    """

    whole: DeviceMesh
    layers: DeviceMesh
    tp: DeviceMesh | None
    cp: SequenceSplit
    data_rank: int

    @property
    def copies(self) -> int:
        """Ranks that work on the same samples."""
        return self.cp.size * (self.tp.size() if self.tp else 1)

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for them."""
        return self.whole.get_local_rank() % self.copies == 0

    @classmethod
    def of(cls, device: str, fsdp: FsdpConfig) -> Self:
        """Of the ranks of the default process group; all of them call it."""
        world, tp, cp, split = dist.get_world_size(), fsdp.tp_size, fsdp.cp_size, ALONE
        layers = whole = init_device_mesh(device, (world,), mesh_dim_names=("fsdp",))
        if tp > 1:
            grid = init_device_mesh(device, (world // tp, tp), mesh_dim_names=("fsdp", "tp"))
            layers = grid["fsdp"]
        if cp > 1:
            rows = init_device_mesh(device, (world // (cp * tp), cp, tp), mesh_dim_names=("dp", "cp", "tp"))["cp"]
            split = SequenceSplit(rows.get_local_rank(), cp, rows.get_group())
        return cls(whole, layers, grid["tp"] if tp > 1 else None, split, dist.get_rank() // (cp * tp))


def check_splits(path: str, layout: Layout) -> None:
    """Raise ValueError if the model at `path` cannot be split in this way."""
    if layout.copies > 1:
        from transformers import AutoConfig

        settings, cp = AutoConfig.from_pretrained(path).get_text_config().to_dict(), layout.cp.size
        for flag, fault in split_faults(settings, layout.copies // cp, cp):
            raise ValueError(f"{flag}: {fault}")


def split_matrices(body: nn.Module, layout: Layout) -> None:
    """Tensor parallelism of a backbone of transformers, by the plan of its class. ValueError if that has other parts as well."""
    plan = getattr(body.config, "base_model_tp_plan", None) or {}
    if not plan or not set(plan.values()) <= _STYLES.keys():
        raise ValueError(f"fsdp.tp_size: {type(body).__name__} has no plan by which columns and rows could be split; use 1")
    # Every rank has loaded the same weights: without a source nothing is sent.
    parallelize_module(body, layout.tp, {name: _STYLES[kind]() for name, kind in plan.items()}, src_data_rank=None)
