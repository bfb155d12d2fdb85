"""Inside vLLM's worker: receives a publication and loads it into the running model.

vLLM imports this module for `WorkerExtension` (worker_extension_cls) before it creates the worker's transfer engine, which
is when the backend "molt" has to be registered.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from engine import compat
from engine.sync.transfer import Link, TransferError, WeightManifest, receive

BACKEND = "molt"


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """Where the transfer group meets; `rank` is that of this engine's first worker, `world` counts the trainer too."""

    host: str
    port: int
    rank: int
    world: int


@dataclass
class ManifestInfo(WeightTransferUpdateInfo):
    """A WeightManifest as it travels in the request."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    bucket_bytes: int

    def manifest(self) -> WeightManifest:
        return WeightManifest(self.names, self.dtypes, [tuple(s) for s in self.shapes], self.bucket_bytes)


class BucketTransfer(WeightTransferEngine):
    """vLLM's weight-transfer interface over the broadcast buckets of engine/sync/transfer.py."""

    init_info_cls = JoinInfo
    update_info_cls = ManifestInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._link: Link | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        rank = init_info.rank + self.parallel_config.rank
        self._link = Link(init_info.host, init_info.port, rank, init_info.world, str(self.device))

    def start_weight_update(self) -> None:
        compat.begin_weight_reload(self.model)

    def receive_weights(self, update_info: ManifestInfo) -> None:
        if self._link is None:
            raise TransferError("the engine is in no transfer group: call init_transfer first")
        for named in receive(self._link, update_info.manifest()):
            self.model.load_weights(named)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Overrides the base, which synchronises through torch.accelerator: a CPU build has none.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def finish_weight_update(self) -> None:
        if missing := compat.unloaded_modules(self.model):
            raise TransferError(f"the manifest has no weights for {len(missing)} modules of the sampler: {missing[:3]}")
        compat.end_weight_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._link = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Abstract in vLLM 0.26, gone in 0.30; the trainer sends with WeightSender."""
        raise NotImplementedError


compat.register_weight_transfer(BACKEND, BucketTransfer)


class WorkerExtension:
    """Methods that vLLM mixes into its worker, reached through collective_rpc."""

    def digest(self) -> tuple[int, float, float]:
        """(count, sum, sum of squares) in float64 over the parameters that PyTorch holds; CPU kernels keep packed copies."""
        count, total, squares = 0, 0.0, 0.0
        for parameter in self.model_runner.model.parameters():
            values = parameter.detach().double()
            count, total = count + values.numel(), total + values.sum().item()
            squares += values.square().sum().item()
        return count, total, squares

    def process_id(self) -> int:
        """Of the process that holds the model; with one worker on CPU that is vLLM's core."""
        return os.getpid()

    def moe_layer_ids(self) -> list[int]:
        """Global layer ids whose expert choice is captured."""
        return compat.vllm_moe_layer_ids(self.model_runner.model)
