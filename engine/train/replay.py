"""Routing replay (R3): the experts that the sampler chose are the experts that train.

In the forward pass of a training micro-batch every router's choice is replaced by the sampler's ids; the weights are
gathered anew from the live router logits, so the router still learns. The ids stay until `end`, after backward, so that a
recomputed layer replays them too. Without replay the same hooks only measure how often the two sides differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engine.algo.sums import Sums, quotients
from engine.compat import MoeLayer


@dataclass
class RoutingTargets:
    """What the sampler reported for one micro-batch of N positions (rows x columns, flattened) and L MoE layers.

    ids_NLk    expert ids, -1 where the sampler reported none
    counted_N  positions that the metrics count: tokens of a segment except its last one, which no sampler ever reads
    """

    ids_NLk: Tensor
    counted_N: Tensor


class RoutingReplay:
    """Hooks on the routers and experts of a model. `begin` before a forward pass that trains, `end` after its backward."""

    def __init__(self, layers: list[MoeLayer], replay: bool) -> None:
        self.layer_ids = [layer.layer_id for layer in layers]
        self.replay = replay
        self._targets: RoutingTargets | None = None
        for index, layer in enumerate(layers):
            layer.replace(partial(self._choose, index))
            layer.experts.register_forward_pre_hook(partial(self._note_consumed, index, layer.ids_argument))

    def begin(self, targets: RoutingTargets) -> None:
        """From here on every pass through the routers belongs to this micro-batch, recomputation included."""
        self._targets = targets
        self._ids_NLk = targets.ids_NLk.long()
        self._reported_NL1 = (targets.ids_NLk >= 0).all(-1, keepdim=True)
        self._live: dict[int, Tensor] = {}
        self._chosen: dict[int, Tensor] = {}
        self._consumed: list[list[Tensor]] = [[] for _ in self.layer_ids]

    def end(self) -> tuple[Sums, Tensor]:
        """Forget the targets; returns the sums behind routing/* and the live mismatch (N, L) of counted positions."""
        targets, self._targets = self._targets, None
        if targets is None:
            raise RuntimeError("RoutingReplay.end without begin")
        live_NLk = torch.stack([self._live[index] for index in range(len(self.layer_ids))], dim=1)
        return routing_sums(targets, live_NLk, self._consumed)

    @contextmanager
    def unmeasured(self, targets: RoutingTargets) -> Iterator[None]:
        """Replay without measuring: for passes that do not train the policy."""
        self.begin(targets)
        try:
            yield
        finally:
            self._targets = None

    def _choose(self, index: int, live_Nk: Tensor) -> Tensor:
        """The ids of one router for this pass; a recomputation gets those of the first pass, whatever the rounding says."""
        if self._targets is None:
            return live_Nk
        if index not in self._live:
            self._live[index] = live_Nk
            self._chosen[index] = torch.where(self._reported_NL1[:, index], self._ids_NLk[:, index], live_Nk)
        return self._chosen[index] if self.replay else live_Nk

    def _note_consumed(self, index: int, ids_argument: int, _experts: nn.Module, inputs: tuple) -> None:
        if self._targets is not None:
            self._consumed[index].append(inputs[ids_argument])


def differs_as_set(first_Nk: Tensor, second_Nk: Tensor) -> Tensor:
    """Bool: whether the distinct ids along the last dimension differ as sets; order does not matter."""
    # k x k comparisons: for the few experts of a token far cheaper than sorting.
    return ~(first_Nk[..., :, None] == second_Nk[..., None, :]).any(-1).all(-1)


@torch.no_grad()
def routing_sums(targets: RoutingTargets, live_NLk: Tensor, consumed: list[list[Tensor]]) -> tuple[Sums, Tensor]:
    """Counts over (token, layer) pairs; those behind per-layer metrics keep their layer dimension.

    `consumed` holds, per layer, the ids the experts got in every pass: forward, and recomputation if there is one.
    """
    counted_NL = targets.counted_N[:, None].expand(live_NLk.shape[:2])
    reported_NL = counted_NL & (targets.ids_NLk >= 0).all(-1)
    mismatch_NL = reported_NL & differs_as_set(live_NLk, targets.ids_NLk)
    every_pass = [torch.stack(layers, dim=1) for layers in zip(*consumed, strict=True)]
    wrong = [(reported_NL & differs_as_set(ids_NLk, targets.ids_NLk)).sum() for ids_NLk in every_pass]
    sums = {
        "routing/pairs": counted_NL.sum().double(),
        "routing/reported_L": reported_NL.sum(0).double(),
        "routing/mismatch_L": mismatch_NL.sum(0).double(),
        "routing/reported": reported_NL.sum().double(),
        "routing/mismatch": mismatch_NL.sum().double(),
        "routing/tokens": reported_NL.any(1).sum().double(),
        "routing/token_mismatch": mismatch_NL.any(1).sum().double(),
        "routing/consumed": len(every_pass) * reported_NL.sum().double(),
        "routing/consumed_wrong": torch.stack(wrong).sum().double(),
    }
    return sums, mismatch_NL


_FRACTIONS = {
    "routing/mismatch_frac": ("routing/mismatch", "routing/reported"),
    "routing/token_mismatch_frac": ("routing/token_mismatch", "routing/tokens"),
    "routing/replayed_mismatch_frac": ("routing/consumed_wrong", "routing/consumed"),
    "routing/coverage_frac": ("routing/reported", "routing/pairs"),
}


def finish_routing(sums: Sums) -> dict[str, float | list[float]]:
    """The routing/* metrics; those without anything to measure are absent."""
    values: dict[str, float | list[float]] = dict(quotients(sums, _FRACTIONS))
    if "routing/coverage_frac" in values:
        values["routing/missing_frac"] = float((sums["routing/pairs"] - sums["routing/reported"]) / sums["routing/pairs"])
    if "routing/mismatch_L" in sums and bool((sums["routing/reported_L"] > 0).all()):
        values["routing/layer_mismatch"] = (sums["routing/mismatch_L"] / sums["routing/reported_L"]).tolist()
    return values
