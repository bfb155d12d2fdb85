"""Inside vLLM's worker: receives a publication and loads it into the running model.

vLLM imports this module for `WorkerExtension` (worker_extension_cls) before it creates the worker's transfer engine, which
is when the backend "molt" has to be registered.
"""

import os
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from engine import compat
from engine.sync.copies import CopyPlan, NotCopies, learn
from engine.sync.link import Link, open_link
from engine.sync.transfer import TransferError, WeightManifest, receive

BACKEND = "molt"


class BucketTransfer(WeightTransferEngine):
    """vLLM's weight-transfer interface over the buckets of engine/sync/transfer.py: loaded by vLLM, or as learnt copies.

    To join it is told kind, host, port and world of the link, and the rank of this engine's first worker in it; with an
    update, the fields of a WeightManifest, or none when it is the one of the publication before.
    """

    init_info_cls = update_info_cls = dict

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._link: Link | None = None
        self._manifest: WeightManifest | None = None
        self._copies: CopyPlan | None = None

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        where = init_info | {"rank": init_info["rank"] + self.parallel_config.rank}
        self._link = open_link(**where, device=str(self.device))

    def learn_copies(self, manifest: dict[str, Any]) -> str:
        """Receive the weights the model already holds and learn to copy them; returns why that is impossible, or nothing."""
        try:
            self._copies = learn(self.model, self.model.load_weights, self._known(manifest), self._joined())
        except NotCopies as reason:
            return str(reason)
        return ""

    def forget_copies(self) -> None:
        """From now on load through vLLM."""
        self._copies = None

    def start_weight_update(self) -> None:
        """Nothing; receive_weights is all of an update."""

    finish_weight_update = start_weight_update

    def receive_weights(self, update_info: dict[str, Any]) -> None:
        manifest, link = self._known(update_info), self._joined()
        if self._copies is not None:
            self._copies.receive(link)
            torch.cuda.synchronize(self.device)
            return
        compat.begin_weight_reload(self.model)
        for named in receive(link, manifest):
            self.model.load_weights(named)
        if missing := compat.unloaded_modules(self.model):
            raise TransferError(f"the manifest has no weights for {len(missing)} modules of the sampler: {missing[:3]}")
        compat.end_weight_reload(self.model, self.model_config)

    def _joined(self) -> Link:
        if self._link is None:
            raise TransferError("the engine is in no transfer group: call init_transfer first")
        return self._link

    def _known(self, manifest: dict[str, Any]) -> WeightManifest:
        """The manifest of this publication; a new one makes what was learnt from another invalid."""
        if manifest:
            self._manifest, self._copies = WeightManifest(**manifest), None
        if self._manifest is None:
            raise TransferError("the first publication needs a manifest")
        return self._manifest

    def shutdown(self) -> None:
        self._link = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Abstract in vLLM 0.26, gone in 0.30; the trainer sends with WeightSender."""
        raise NotImplementedError


compat.register_weight_transfer(BACKEND, BucketTransfer)


class WorkerExtension:
    """Methods that vLLM mixes into its worker, reached through collective_rpc."""

    def receive_weights(self, manifest: dict[str, Any]) -> None:
        """One call where vLLM's own start, update and finish are three, each a round trip while the engine stands still."""
        with set_current_vllm_config(self.vllm_config):  # the loaders ask for it
            self.weight_transfer_engine.receive_weights(manifest)

    def learn_copies(self, manifest: dict[str, Any]) -> str:
        return self.weight_transfer_engine.learn_copies(manifest)

    def forget_copies(self) -> None:
        self.weight_transfer_engine.forget_copies()

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
