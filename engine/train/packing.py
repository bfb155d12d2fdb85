"""Packing: the segments of a micro-batch behind each other in one row, so that no padding is computed.

Attention stays inside each segment: with torch's variable-length kernel in bf16 on CUDA, else segment by segment.
Several ranks can share a row: each computes its part of the tokens, but in attention its part of the heads for all of them
(Jacobs et al., "DeepSpeed Ulysses", 2023).
"""

from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class SequenceSplit(NamedTuple):
    """The place of this rank among those that share every row."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def joined(self, own: Tensor) -> Tensor:
        """The parts of all ranks, each 0 where another rank has its part; the gradient goes to the own one alone."""
        if self.size == 1:
            return own
        whole = own.detach().clone()
        dist.all_reduce(whole, group=self.group)
        return own + (whole - own.detach())

    def to_heads(self, *own_1HMD: Tensor) -> list[Tensor]:
        """From all heads of the own tokens to the own heads of all tokens: (1, H, M, D) each to (1, H / size, size x M, D)."""
        rows = [x.reshape(self.size, -1) for x in own_1HMD]
        received = _Exchange.apply(torch.cat(rows, 1), self.group).split([row.shape[1] for row in rows], 1)
        shapes = [(x.shape[1] // self.size, *x.shape[2:]) for x in own_1HMD]
        return [r.unflatten(1, shape).transpose(0, 1).flatten(1, 2)[None] for r, shape in zip(received, shapes)]

    def to_tokens(self, own_1HND: Tensor) -> Tensor:
        """And back: (1, H / size, size x M, D) to (1, H, M, D)."""
        parts = own_1HND[0].unflatten(1, (self.size, -1)).transpose(0, 1)
        return _Exchange.apply(parts.flatten(1), self.group).view(1, -1, *parts.shape[2:])


ALONE = SequenceSplit()


class _Exchange(torch.autograd.Function):
    """Row i goes to rank i of the group, whose row for this rank takes its place; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, sent_PX: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received_PX = torch.empty_like(sent_PX, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received_PX, sent_PX.contiguous(), group=group)
        return received_PX

    @staticmethod
    def backward(ctx: Any, gradient_PX: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(gradient_PX, ctx.group), None


@dataclass
class Packing:
    """Where the inputs of a packed row come from: this rank's N inputs, and padding up to the M that every rank has.

    kept_N       indices into the flattened inputs (B, T - 1) of the padded micro-batch, ascending
    positions_1M position of each input in its segment
    lengths      inputs of each segment of the row, in order, its padding behind them; bounds: their running sum from 0, int32
    span         from the first of kept_N to the last: every input there is one of them or padding
    """

    kept_N: Tensor
    positions_1M: Tensor
    bounds: Tensor
    lengths: list[int]
    span: slice
    split: SequenceSplit

    @classmethod
    def of(cls, lengths: list[int], width: int, device: torch.device, split: SequenceSplit = ALONE) -> Self:
        """`lengths` tokens of the rows of a micro-batch of `width` columns; the last token of each is no input."""
        inputs = torch.tensor(lengths) - 1
        is_input_BT = torch.arange(width - 1) < inputs[:, None]
        row_N, position_N = is_input_BT.nonzero(as_tuple=True)
        padding = -len(row_N) % split.size
        share = (len(row_N) + padding) // split.size
        own = slice(split.rank * share, (split.rank + 1) * share)
        if padding:
            inputs = nn.functional.pad(inputs, (0, 1), value=padding)
        bounds = nn.functional.pad(inputs.cumsum(0), (1, 0)).int()
        positions_1M = nn.functional.pad(position_N, (0, padding))[None, own]
        kept_N = (row_N * (width - 1) + position_N)[own]
        span = slice(int(kept_N[0]), int(kept_N[-1]) + 1) if len(kept_N) else slice(0, 0)
        tensors = (kept_N, positions_1M, bounds)
        return cls(*(tensor.to(device) for tensor in tensors), inputs.tolist(), span, split)

    def pack(self, padded_PX: Tensor, padding: int = 0) -> Tensor:
        """The own M of P padded inputs."""
        kept_NX = padded_PX[self.kept_N]
        missing = self.positions_1M.shape[1] - len(kept_NX)
        return torch.cat([kept_NX, kept_NX.new_full((missing, *kept_NX.shape[1:]), padding)])

    def place(self, packed_MX: Tensor, count: int) -> Tensor:
        """Put the own rows back among `count` padded inputs; what was padding or another rank's is 0."""
        return packed_MX.new_zeros(count, *packed_MX.shape[1:]).index_copy(0, self.kept_N, packed_MX[: len(self.kept_N)])


class PackedAttention:
    """What the attention modules of one model share: the packing of the present micro-batch, recomputation included."""

    packing: Packing | None = None

    def attend(self, q_1HMD: Tensor, k_1HMD: Tensor, v_1HMD: Tensor, scale: float | None = None, **_: Any) -> Tensor:
        """Causal attention (1, H, M, D) that stays inside each segment; keys and values may have fewer heads."""
        if self.packing is None:
            return scaled_dot_product_attention(q_1HMD, k_1HMD, v_1HMD, is_causal=True, scale=scale, enable_gqa=True)
        split = self.packing.split
        if split.size == 1:
            return _within_segments(self.packing, q_1HMD, k_1HMD, v_1HMD, scale)
        # So many copies of every head of keys and values that the ranks can share them out.
        copies = split.size // gcd(split.size, k_1HMD.shape[1])
        k_1HMD, v_1HMD = (x.repeat_interleave(copies, dim=1) for x in (k_1HMD, v_1HMD))
        return split.to_tokens(_within_segments(self.packing, *split.to_heads(q_1HMD, k_1HMD, v_1HMD), scale))


def _within_segments(packing: Packing, q_1HND: Tensor, k_1HND: Tensor, v_1HND: Tensor, scale: float | None) -> Tensor:
    lengths, bounds = packing.lengths, packing.bounds
    if not q_1HND.is_cuda or q_1HND.dtype == torch.float32:
        causal = partial(scaled_dot_product_attention, is_causal=True, scale=scale, enable_gqa=True)
        parts = zip(*(x.split(lengths, dim=2) for x in (q_1HND, k_1HND, v_1HND)))
        return torch.cat([causal(*part) for part in parts], dim=2)
    from torch.nn.attention.varlen import varlen_attn

    groups, longest = q_1HND.shape[1] // k_1HND.shape[1], max(lengths)
    k_1HND, v_1HND = (x.repeat_interleave(groups, dim=1) for x in (k_1HND, v_1HND))
    q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1).contiguous() for x in (q_1HND, k_1HND, v_1HND))
    out_NHD = varlen_attn(q_NHD, k_NHD, v_NHD, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0))
    return out_NHD.transpose(0, 1)[None]


def use_packed_attention(causal_lm: nn.Module) -> PackedAttention:
    """Give every attention module of a model of transformers or AutoModel the packed attention."""
    from transformers import AttentionInterface, AttentionMaskInterface

    shared = PackedAttention()
    AttentionInterface.register("packed", _for_transformers)
    AttentionMaskInterface.register("packed", lambda *_, **__: None)
    causal_lm.config._attn_implementation = "packed"
    attentions = [module for name, module in causal_lm.named_modules() if name.endswith("self_attn")]
    if len(attentions) < causal_lm.config.num_hidden_layers:
        raise ValueError(
            "fsdp.packing_samples: the model has layers without attention, which would mix the segments; leave it off"
        )
    for module in attentions:
        module.packed = shared
        module.attn_func = shared.attend  # where AutoModel's own attention looks for it
    return shared


def _for_transformers(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Any, scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    return module.packed.attend(query, key, value, scaling).transpose(1, 2), None
