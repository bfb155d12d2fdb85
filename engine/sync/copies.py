"""A publication as copies straight into the sampler's parameters, learnt once from what vLLM's own loaders do.

Loading tensor by tensor costs Python per tensor, far more than the link. The loaders of unquantised weights only cut views and
copy; those copies are noted once, compared with what the sampler holds, and repeated for every publication, fused per bucket.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine import compat
from engine.sync.link import Link
from engine.sync.transfer import Bucket, WeightManifest, plan_buckets


class NotCopies(Exception):
    """These weights cannot be published as plain copies; the message says why."""


@dataclass(frozen=True)
class Copy:
    """One view of a parameter, and where in its bucket the values lie: element type, sizes and strides, offset in elements."""

    target: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def source(self, flat: torch.Tensor) -> torch.Tensor:
        """The values inside the bucket's uint8 buffer, as a view."""
        start = flat.storage_offset() // self.dtype.itemsize + self.offset
        empty = torch.empty(0, dtype=self.dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), start, self.shape, self.stride)


class _Recorder(TorchDispatchMode):
    """Notes the copies out of `flat` instead of making them; `filled` counts elements written in each of the model's storages."""

    def __init__(self, flat: torch.Tensor, filled: dict[int, int]) -> None:
        super().__init__()
        self.flat, self.filled = flat, filled
        self.copies: list[Copy] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        writes = func in _WRITES and _storage(args[0]) in self.filled
        if not writes:
            return func(*args, **(kwargs or {}))
        target = args[0]
        self.filled[_storage(target)] += target.numel()
        if func is torch.ops.aten.copy_.default:
            source = args[1]
            if _storage(source) != _storage(self.flat):
                raise NotCopies("a loader changes weights before it copies them")
            offset = source.storage_offset() - self.flat.storage_offset() // source.dtype.itemsize
            source = source.expand(target.shape)  # copy_ broadcasts
            self.copies.append(Copy(target, source.dtype, tuple(source.shape), source.stride(), offset))
        return target


# Apart from the copies, loaders write the zeros of padding, which stay as they are.
_WRITES = (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)


class CopyPlan:
    """What `learn` found: for every bucket the copies that load it."""

    def __init__(self, buckets: list[Bucket], copies: list[list[Copy]]) -> None:
        self._sizes, self._copies = [b.nbytes for b in buckets], copies

    @torch.no_grad()
    def receive(self, link: Link) -> None:
        """Take one publication from the link."""
        for flat, copies in zip(link.receive(self._sizes), self._copies, strict=True):
            compat.fused_copy([c.target for c in copies], [c.source(flat) for c in copies])


Load = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]


@torch.no_grad()
def learn(model: nn.Module, load: Load, manifest: WeightManifest, link: Link) -> CopyPlan:
    """Receive the weights that `model` already holds, note how `load` would copy them, and compare. Writes nothing.

    Raises NotCopies when repeating the copies would not give what vLLM's loading gave; the publication is received to its end.
    """
    buckets = plan_buckets(manifest)
    filled = {_storage(p): 0 for p in model.parameters()}
    copies: list[list[Copy]] = []
    reason = ""
    for flat, bucket in zip(link.receive([b.nbytes for b in buckets]), buckets, strict=True):
        if reason:
            continue
        recorder = _Recorder(flat, filled)
        try:
            with recorder:
                load([(slot.name, slot.view(flat)) for slot in bucket.slots])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            continue
        copies.append(recorder.copies)
        if not all(_same(copy.target, copy.source(flat)) for copy in recorder.copies):
            reason = "the sampler's layout is not the one its loaders write"
    missing = [name for name, p in model.named_parameters() if filled[_storage(p)] < p.numel()]
    if not reason and missing:
        reason = f"the manifest fills {len(missing)} parameters of the sampler in part or not at all: {missing[:3]}"
    if reason:
        raise NotCopies(reason)
    return CopyPlan(buckets, copies)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same(held: torch.Tensor, sent: torch.Tensor) -> bool:
    """Equal in the type that travels: the sampler may keep a wider one."""
    return torch.equal(held.to(sent.dtype), sent)
