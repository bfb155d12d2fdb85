"""Packing: the segments of a micro-batch behind each other in one row, so that no padding is computed.

Attention stays inside each segment: with torch's variable-length kernel in bf16 on CUDA, else segment by segment.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


@dataclass
class Packing:
    """Where the N inputs of a packed row come from.

    kept_N       indices into the flattened inputs (B, T - 1) of the padded micro-batch
    positions_1N position of each input in its segment
    lengths      inputs of each segment, in order; bounds: their running sum from 0, int32
    """

    kept_N: Tensor
    positions_1N: Tensor
    bounds: Tensor
    lengths: list[int]

    @classmethod
    def of(cls, lengths: list[int], width: int, device: torch.device) -> Self:
        """`lengths` tokens of the rows of a micro-batch of `width` columns; the last token of each is no input."""
        inputs = torch.tensor(lengths) - 1
        is_input_BT = torch.arange(width - 1) < inputs[:, None]
        row_N, position_N = is_input_BT.nonzero(as_tuple=True)
        bounds = nn.functional.pad(inputs.cumsum(0), (1, 0)).int()
        tensors = (row_N * (width - 1) + position_N, position_N[None], bounds)
        return cls(*(tensor.to(device) for tensor in tensors), inputs.tolist())

    def unpack(self, packed_NX: Tensor, count: int) -> Tensor:
        """Put rows back among `count` padded inputs; what was padding is 0."""
        return packed_NX.new_zeros(count, *packed_NX.shape[1:]).index_copy(0, self.kept_N, packed_NX)


class PackedAttention:
    """What the attention modules of one model share: the packing of the present micro-batch, recomputation included."""

    packing: Packing | None = None

    def attend(self, q_1HND: Tensor, k_1HND: Tensor, v_1HND: Tensor, scale: float | None = None, **_: Any) -> Tensor:
        """Causal attention (1, H, N, D) that stays inside each segment; keys and values may have fewer heads."""
        causal = partial(scaled_dot_product_attention, is_causal=True, scale=scale, enable_gqa=True)
        if self.packing is None:
            return causal(q_1HND, k_1HND, v_1HND)
        lengths, bounds = self.packing.lengths, self.packing.bounds
        if not q_1HND.is_cuda or q_1HND.dtype == torch.float32:
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
    for name, module in causal_lm.named_modules():
        if name.endswith("self_attn"):
            module.packed = shared
            module.attn_func = shared.attend  # where AutoModel's own attention looks for it
    return shared


def _for_transformers(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Any, scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    return module.packed.attend(query, key, value, scaling).transpose(1, 2), None
