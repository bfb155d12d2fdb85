"""The critic of GAE: the policy's architecture with a scalar head, its own optimizer, colocated with the policy."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn

from engine.algo.loss import Denominators, value_loss
from engine.algo.sums import Sums
from engine.compat import moe_layers
from engine.config import CriticConfig
from engine.train.collate import MicroBatch
from engine.train.layout import Layout
from engine.train.model import ModelOptions, backbone, hidden_states, load_causal_lm, shard_root
from engine.train.optimizer import build_adamw, set_learning_rate, update
from engine.train.plan import TrainOrder
from engine.train.replay import RoutingReplay


class ValueModel(nn.Module):
    """Token ids (B, T) in, values (B, T) out: entry t is the value of the state before token t; the head starts at 0."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(hidden_size, 1, bias=False, device=next(backbone.parameters()).device)
        nn.init.zeros_(self.head.weight)

    def forward(self, input_ids_BT: torch.Tensor) -> torch.Tensor:
        hidden_BTD = hidden_states(self.backbone, input_ids_BT[:, :-1])
        return nn.functional.pad(self.head(hidden_BTD).squeeze(-1).float(), (1, 0))


class Critic:
    """Starts from the policy's weights. With `replay` its routers follow the sampler's choice like the policy's."""

    def __init__(self, path: str, layout: Layout, options: ModelOptions, config: CriticConfig, replay: bool) -> None:
        causal_lm = load_causal_lm(path, layout, options)
        layers = moe_layers(causal_lm)
        self._routing = RoutingReplay(layers, replay) if layers else None
        self.model = ValueModel(backbone(causal_lm), causal_lm.config.hidden_size)
        shard_root(self.model, causal_lm, layout, options)
        self.optimizer = build_adamw(self.model.parameters(), config.adam, options.offload == "optimizer")
        self._config = config

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> torch.Tensor:
        """Values (B, T) under the present weights."""
        with self._replayed(batch):
            values_BT = self.model(batch.input_ids_BT)
        self.model.reshard()
        return values_BT

    def train_pass(self, batch: MicroBatch, order: TrainOrder, counts: Denominators, ranks: int, last: bool) -> Sums:
        """Forward and backward of one micro-batch against the order's returns; `last` of its optimizer step."""
        self.model.set_requires_gradient_sync(last)
        old_BT = _aligned(batch, [order.samples[s].values for s in batch.samples])
        returns_BT = _aligned(batch, [order.samples[s].returns for s in batch.samples])
        with self._replayed(batch):
            values_BT = self.model(batch.input_ids_BT)
            loss, sums = value_loss(values_BT, old_BT, returns_BT, batch.mask_BT, self._config.value_clip, counts)
            (loss * ranks).backward()
        return sums

    def step(self, max_norm: float, lr_scale: float) -> float:
        """One optimizer step; returns the gradient norm before clipping."""
        set_learning_rate(self.optimizer, self._config.adam.lr * lr_scale)
        return update(self.optimizer, self.model.parameters(), max_norm)

    def _replayed(self, batch: MicroBatch) -> AbstractContextManager:
        return self._routing.unmeasured(batch.routing) if self._routing else nullcontext()


def _aligned(batch: MicroBatch, rows: list[np.ndarray | None]) -> torch.Tensor:
    """One value per sampled token of each row, at the positions of these tokens."""
    aligned_BT = torch.zeros(batch.sampled_BT.shape, device=batch.sampled_BT.device)
    for row, values in enumerate(rows):
        if values is not None:
            aligned_BT[row, batch.sampled_BT[row]] = torch.from_numpy(values).to(aligned_BT)
    return aligned_BT
