"""The frozen reference model, colocated with the policy: what KL is measured against and what distillation follows."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from engine.compat import moe_layers
from engine.train.collate import MicroBatch, RoutingShape, routing_shape
from engine.train.model import ModelOptions, load_causal_lm, shard_policy
from engine.train.passes import replayed_logprobs
from engine.train.replay import RoutingReplay


class Reference:
    """A second sharded model without gradients. With `replay` its routers follow the sampler too, where they have the
    policy's shape. Raises ValueError for another vocabulary."""

    def __init__(
        self, path: str, mesh: DeviceMesh, options: ModelOptions, vocab_size: int, routing: RoutingShape | None, replay: bool
    ) -> None:
        causal_lm = load_causal_lm(path, mesh, options).requires_grad_(False).eval()
        if causal_lm.config.vocab_size != vocab_size:
            raise ValueError(f"ref.model_name_or_path has {causal_lm.config.vocab_size} token ids, the policy {vocab_size}: "
                             "use a model with the same tokenizer")  # fmt: skip
        layers = moe_layers(causal_lm)
        same = routing is not None and bool(layers) and routing_shape(layers) == routing
        self._routing = RoutingReplay(layers, replay) if same else None
        self._policy = shard_policy(causal_lm, mesh, options)

    def logprobs(self, batch: MicroBatch, wanted_BT: torch.Tensor) -> torch.Tensor:
        """Log-probs (B, T) of the wanted tokens."""
        return replayed_logprobs(self._policy, batch, wanted_BT, self._routing)
