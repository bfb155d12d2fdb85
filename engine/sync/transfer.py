"""Weights from a trainer rank to engine workers: flat buckets that both ends plan alike from the manifest, so that only bytes
travel; link.py carries them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from engine import compat
from engine.sync.link import Link

DEFAULT_BUCKET_BYTES = 256 << 20
ALIGNMENT = 16  # a typed view into the flat buffer must start at a multiple of its item size


class TransferError(RuntimeError):
    """The sender's tensors do not match the manifest, or the link broke."""


@dataclass(frozen=True)
class WeightManifest:
    """What is sent, in order: names as the sampler's load_weights wants them, torch dtype names, shapes."""

    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    bucket_bytes: int = DEFAULT_BUCKET_BYTES

    @property
    def total_bytes(self) -> int:
        """Payload in bytes, without padding."""
        return sum(tensor_bytes(d, s) for d, s in zip(self.dtypes, self.shapes))


@dataclass(frozen=True)
class Slot:
    """One tensor inside a bucket; offset and size in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This tensor as a typed view of the bucket's uint8 buffer."""
        return flat[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass
class Bucket:
    """Tensors that travel in one broadcast of `nbytes` bytes."""

    slots: list[Slot] = field(default_factory=list)
    nbytes: int = 0


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Size in bytes of a tensor of this torch dtype name and shape."""
    return math.prod(shape) * getattr(torch, dtype).itemsize


def plan_buckets(manifest: WeightManifest) -> list[Bucket]:
    """Pack the tensors in order into buckets of at most bucket_bytes; a larger tensor travels alone."""
    buckets: list[Bucket] = []
    for name, dtype, shape in zip(manifest.names, manifest.dtypes, manifest.shapes, strict=True):
        nbytes = tensor_bytes(dtype, shape)
        offset = -(-buckets[-1].nbytes // ALIGNMENT) * ALIGNMENT if buckets else 0
        if not buckets or offset + nbytes > manifest.bucket_bytes:
            buckets.append(Bucket())
            offset = 0
        buckets[-1].slots.append(Slot(name, getattr(torch, dtype), tuple(shape), offset, nbytes))
        buckets[-1].nbytes = offset + nbytes
    return buckets


class WeightSender:
    """The trainer's end. The manifest is fixed for the run, so the buckets are planned once."""

    def __init__(self, link: Link, manifest: WeightManifest):
        self.link, self.manifest = link, manifest
        self._buckets = plan_buckets(manifest)
        self._packed: list[torch.Tensor] = []

    def pack(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy the tensors into buckets, cast to the manifest's dtypes; the engines may go on sampling meanwhile.

        `named` yields full tensors in manifest order. Raises TransferError on a wrong name or shape.
        """
        tensors = iter(named)
        packed = [self._pack_bucket(bucket, tensors) for bucket in self._buckets]
        if next(tensors, None) is not None:
            raise TransferError("the trainer has more weights than the manifest lists")
        self._packed = packed

    def _pack_bucket(self, bucket: Bucket, tensors: Iterator[tuple[str, torch.Tensor]]) -> torch.Tensor:
        sources = []
        for slot in bucket.slots:
            name, tensor = next(tensors, (None, None))
            if name != slot.name or tuple(tensor.shape) != slot.shape:
                got = "nothing" if name is None else f"{name} {tuple(tensor.shape)}"
                raise TransferError(f"the manifest expects {slot.name} {slot.shape}, the trainer has {got}")
            sources.append(tensor)
        flat = torch.empty(bucket.nbytes, dtype=torch.uint8, device=self.link.device)
        compat.fused_copy([slot.view(flat) for slot in bucket.slots], sources)
        return flat

    def send(self) -> int:
        """Send what `pack` left and free it; returns the bytes sent."""
        if not self._packed:
            raise TransferError("nothing is packed: call pack before every send")
        self.link.send(self._packed)
        self._packed = []
        return self.manifest.total_bytes


def receive(link: Link, manifest: WeightManifest) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The engine worker's end: yields the (name, tensor) pairs of one bucket after the other, in memory of their own:
    vLLM's loaders keep the tensors until their layer is complete."""
    buckets = plan_buckets(manifest)
    for flat, bucket in zip(link.receive([b.nbytes for b in buckets]), buckets, strict=True):
        own = flat.clone()
        yield [(slot.name, slot.view(own)) for slot in bucket.slots]
