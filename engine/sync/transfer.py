"""Weights from trainer rank 0 to every engine worker: flat buckets, broadcast over one process group.

Both ends plan the same buckets from the manifest, so only bytes travel. The group holds the trainer (rank 0) and all
engine workers; gloo carries it on CPU and through host memory for tensors on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from engine import compat

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


class Link:
    """The process group of trainer rank 0 and all engine workers; only rank 0 sends."""

    def __init__(self, host: str, port: int, rank: int, world: int, device: str = "cpu", timeout_s: float = 300.0):
        """Blocks until all `world` members have joined, at most timeout_s seconds. Rank 0 serves the rendezvous."""
        self.rank, self.device = rank, torch.device(device)
        self._group: Any = compat.gloo_group(host, port, rank, world, timeout_s)

    def broadcast(self, flat: torch.Tensor) -> None:
        """Fill `flat` (uint8, on the link's device) with rank 0's bytes; returns when done here."""
        staged = flat if flat.device.type == "cpu" else flat.cpu()
        compat.gloo_broadcast(self._group, staged)
        if self.rank and staged is not flat:
            flat.copy_(staged)


class WeightSender:
    """The trainer's end. The manifest is fixed for the run, so the buckets are planned once."""

    def __init__(self, link: Link, manifest: WeightManifest):
        self.link, self.manifest = link, manifest
        self._buckets = plan_buckets(manifest)

    def send(self, named: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Broadcast the tensors, cast to the manifest's dtypes; returns the bytes sent.

        `named` yields full tensors in manifest order. A wrong name or shape raises TransferError: the receivers then
        wait until the link's time-out, so the run has to end.
        """
        tensors = iter(named)
        for bucket in self._buckets:
            flat = torch.empty(bucket.nbytes, dtype=torch.uint8, device=self.link.device)
            for slot in bucket.slots:
                name, tensor = next(tensors, (None, None))
                if name != slot.name or tuple(tensor.shape) != slot.shape:
                    got = "nothing" if name is None else f"{name} {tuple(tensor.shape)}"
                    raise TransferError(f"the manifest expects {slot.name} {slot.shape}, the trainer sent {got}")
                slot.view(flat).copy_(tensor)
            self.link.broadcast(flat)
        if next(tensors, None) is not None:
            raise TransferError("the trainer sent more than the manifest lists")
        return self.manifest.total_bytes


def receive(link: Link, manifest: WeightManifest) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The engine worker's end: yields the (name, tensor) pairs of one bucket after the other.

    Each bucket has a buffer of its own, because vLLM's loaders keep the tensors until their layer is complete.
    """
    for bucket in plan_buckets(manifest):
        flat = torch.empty(bucket.nbytes, dtype=torch.uint8, device=link.device)
        link.broadcast(flat)
        yield [(slot.name, slot.view(flat)) for slot in bucket.slots]
