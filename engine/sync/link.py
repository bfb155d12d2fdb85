"""How buckets travel from trainer rank 0 to the engine workers: gloo through host memory, NCCL between GPUs, CUDA IPC
inside one GPU. A link sends whole buckets and yields them, in order, at the other end."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from engine import compat

LinkKind = Literal["gloo", "nccl", "ipc"]
JOIN_TIMEOUT_S = 300.0


class Link:
    """gloo, for tensors of any device. Rank 0 sends, every other member receives."""

    def __init__(
        self, host: str, port: int, rank: int, world: int, device: str = "cpu", timeout_s: float = JOIN_TIMEOUT_S
    ) -> None:
        """Blocks until all `world` members have joined, at most timeout_s seconds. Rank 0 serves the rendezvous."""
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._group: Any = self._join(host, port, rank, world, timeout_s)

    def _join(self, host: str, port: int, rank: int, world: int, timeout_s: float) -> Any:
        return compat.gloo_group(host, port, rank, world, timeout_s)

    def send(self, flats: Sequence[torch.Tensor]) -> None:
        """Give every receiver the bytes of these uint8 buffers; returns when they may be freed."""
        for flat in flats:
            compat.broadcast(self._group, flat.cpu()).wait()

    def receive(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Buffers of these sizes in bytes, as sent. Each may change once the next one is asked for."""
        for size in sizes:
            staged = torch.empty(size, dtype=torch.uint8)
            compat.broadcast(self._group, staged).wait()
            yield staged.to(self.device)


class NcclLink(Link):
    """NCCL, one GPU per member. A bucket is on its way while the one before is being used."""

    def _join(self, host: str, port: int, rank: int, world: int, timeout_s: float) -> Any:
        torch.cuda.set_device(self.device)
        group = compat.nccl_group(host, port, rank, world, timeout_s)
        compat.broadcast(group, torch.zeros(1, device=self.device)).wait()  # builds the communicator now, outside any pause
        torch.cuda.synchronize(self.device)
        return group

    def send(self, flats: Sequence[torch.Tensor]) -> None:
        for work in [compat.broadcast(self._group, flat) for flat in flats]:
            work.wait()
        torch.cuda.synchronize(self.device)

    def receive(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        buffers = [torch.empty(max(sizes), dtype=torch.uint8, device=self.device) for _ in range(2)]
        flats = [buffers[index % 2][:size] for index, size in enumerate(sizes)]
        work = compat.broadcast(self._group, flats[0])
        for flat, following in zip(flats, [*flats[1:], None]):
            # Queued behind what the current stream still does with the buffer that is filled again.
            ahead = None if following is None else compat.broadcast(self._group, following)
            work.wait()
            yield flat
            work = ahead


class IpcLink(Link):
    """Trainer and engine on one GPU: the engine maps the trainer's buffers; handles travel over gloo."""

    def send(self, flats: Sequence[torch.Tensor]) -> None:
        torch.cuda.synchronize(self.device)
        message = pickle.dumps([compat.ipc_handle(flat) for flat in flats])
        for part in (len(message).to_bytes(8, "little"), message):
            compat.broadcast(self._group, torch.frombuffer(bytearray(part), dtype=torch.uint8)).wait()
        self._group.barrier().wait()

    def receive(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        length = torch.zeros(8, dtype=torch.uint8)
        compat.broadcast(self._group, length).wait()
        message = torch.empty(int.from_bytes(bytes(length.tolist()), "little"), dtype=torch.uint8)
        compat.broadcast(self._group, message).wait()
        for handle, size in zip(pickle.loads(message.numpy().tobytes()), sizes, strict=True):
            yield compat.open_ipc_handle(handle)[:size]
        torch.cuda.synchronize(self.device)
        self._group.barrier().wait()


_KINDS: dict[LinkKind, type[Link]] = {"gloo": Link, "nccl": NcclLink, "ipc": IpcLink}


def open_link(kind: LinkKind, host: str, port: int, rank: int, world: int, device: str) -> Link:
    """Join as `rank`; blocks until all `world` members have joined."""
    return _KINDS[kind](host, port, rank, world, device)
