"""What a batch asks of the devices: floating-point work, peak memory, and what to change when the memory is out."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from engine.compat import MoeLayer

# FLOP/s of a matrix product in bf16 without sparsity, by a part of the device's name (NVIDIA's data sheets).
PEAK_FLOPS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12}
_MICRO_BATCH = "lower train.max_tokens_per_gpu, or use actor.gradient_checkpoint full"
_STATE = "use fsdp.offload optimizer, or more trainer ranks (actor.num_gpus_per_node)"
# What to change when a phase runs out of memory, by the names of time/*.
REMEDIES = {"starting": _STATE, "load": _MICRO_BATCH, "measure": _MICRO_BATCH, "forward_backward": _MICRO_BATCH,
            "optim": _STATE, "weight_sync": _STATE, "probe": "lower train.max_tokens_per_gpu"}  # fmt: skip


@dataclass(frozen=True)
class ModelFlops:
    """Work of a model by the usual count (Chowdhery et al., "PaLM", 2022, appendix B), causal attention counted once.

    parameters  those a token is multiplied with: all but the input embedding and the experts it is not sent to
    attention   layers x heads x head size
    """

    parameters: float
    attention: float

    @classmethod
    def of(cls, causal_lm: nn.Module, layers: list[MoeLayer]) -> Self:
        config = causal_lm.config
        parameters = float(sum(p.numel() for p in causal_lm.parameters()))
        if not config.tie_word_embeddings:
            parameters -= causal_lm.get_input_embeddings().weight.numel()
        for layer in layers:
            idle = 1 - layer.top_k / layer.num_experts
            parameters -= idle * sum(p.numel() for p in layer.experts.parameters())
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(parameters, config.num_hidden_layers * config.num_attention_heads * head_dim)

    def training(self, lengths: Iterable[int]) -> float:
        """FLOPs of one forward and backward over sequences of these lengths; recomputation is not counted."""
        return sum(6.0 * self.parameters * length + 6.0 * self.attention * length**2 for length in lengths)


def peak_flops() -> float | None:
    """FLOP/s of the current device in bf16; None for one that is not in the table."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


class Moment:
    """A point in the work of a device: on CUDA it comes when all that was queued before is done, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def seconds_since(self, earlier: Self) -> float:
        """Waits for this moment."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return earlier._event.elapsed_time(self._event) / 1000


@contextmanager
def explained(phase: str) -> Iterator[None]:
    """Turn an exhausted device memory in this phase (a key of REMEDIES) into one line that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reserved = torch.cuda.memory_reserved() / 2**30 if torch.cuda.is_available() else 0.0
        raise RuntimeError(f"out of GPU memory in {phase} ({reserved:.1f} GiB held): {REMEDIES[phase]}") from error
