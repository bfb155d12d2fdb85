"""Weight transfer of a 10 GB mixture of experts, GPU 1 to an engine on GPU 0: vLLM's stock packed path, or ours.

usage: python -m tests.bench.gpu.transfer stock|own     (both may start at once: measuring takes turns)
"""

from __future__ import annotations

import asyncio
import fcntl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3MoeForCausalLM

from engine.config import Config
from engine.placement import free_port
from engine.rollout import engine as sampler
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.sync.link import open_link
from engine.sync.publish import publish
from engine.sync.transfer import WeightManifest, WeightSender
from engine.sync.worker import WorkerExtension
from engine.train.weights import weight_shapes
from tests.bench.figures import report
from tests.bench.gpu.models import moe_10gb

REPEATS = 5
SENDER = "cuda:1"


class BenchExtension(WorkerExtension):
    def take(self, sizes: list[int]) -> None:
        """Receive buckets of these sizes and use them for nothing."""
        for _ in self.weight_transfer_engine._link.receive(sizes):
            pass
        torch.cuda.synchronize()


class Source:
    """The trainer's end as publish() calls it: random weights of the model on the second GPU."""

    def __init__(self, shapes: list[tuple[str, tuple[int, ...]]]) -> None:
        self.weights = {name: torch.empty(shape, dtype=torch.bfloat16, device=SENDER) for name, shape in shapes}
        self.manifest = WeightManifest([n for n, _ in shapes], ["bfloat16"] * len(shapes), [s for _, s in shapes])
        self.seconds: dict[str, float] = {}

    def draw(self, seed: int) -> None:
        torch.manual_seed(seed)
        for weight in self.weights.values():
            weight.normal_(0.0, 0.02)

    async def join(self, engine: VllmEngine) -> None:
        port = free_port()
        opened = asyncio.to_thread(open_link, "nccl", "127.0.0.1", port, 0, 2, SENDER)
        link, _ = await asyncio.gather(opened, engine.init_transfer("127.0.0.1", port, 1, 2, "nccl"))
        self.sender = WeightSender(link, self.manifest)

    async def prepare_weights(self) -> None:
        await asyncio.to_thread(self._timed, "pack", lambda: self.sender.pack(self.weights.items()))

    async def send_weights(self) -> None:
        await asyncio.to_thread(self._timed, "send", self.sender.send)

    def _timed(self, what: str, work: Callable[[], Any]) -> None:
        torch.cuda.set_device(SENDER)
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        self.seconds[what] = time.perf_counter() - started


@contextmanager
def alone() -> Iterator[None]:
    """Measure while no other process of the bench does."""
    with open(Path(tempfile.gettempdir()) / "molt-bench.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def start_engine(folder: Path, backend: str) -> VllmEngine:
    config = moe_10gb()
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.save_pretrained(folder)
    stock = sampler.engine_arguments

    def arguments(spec: EngineSpec) -> dict[str, Any]:
        found = stock(spec) | {"load_format": "dummy", "weight_transfer_config": {"backend": backend}}
        return found | {"worker_extension_cls": "tests.bench.gpu.transfer.BenchExtension"}

    sampler.engine_arguments = arguments
    engine = VllmEngine()
    started = time.perf_counter()
    vllm = {"max_num_seqs": 32, "enforce_eager": True, "kv_cache_gb": 4.0, "gpu_memory_utilization": 0.1}
    await engine.start(EngineSpec(str(folder), Config(data={"max_len": 1024}, vllm=vllm), "cuda"))
    report(f"transfer/{backend}_engine_start", time.perf_counter() - started, "s")
    return engine


def sample(engine: VllmEngine, count: int) -> list[asyncio.Task]:
    """Requests that are in flight when the publication comes."""
    from engine.rollout.transport import GenerateRequest, Sampling

    requests = [GenerateRequest(f"r{i}", f"e{i}", [5 + i] * 16, Sampling(max_tokens=900)) for i in range(count)]
    return [asyncio.create_task(engine.generate(request)) for request in requests]


async def own(engine: VllmEngine, source: Source) -> None:
    await source.join(engine)

    async def once(version: int) -> Any:
        return await publish([source], [engine], source.manifest, version)

    source.draw(1)
    loaded = await once(1)
    report("transfer/loaders_s", loaded.transfer_seconds, "s")
    first = await engine.digest()
    await source.prepare_weights()
    started = time.perf_counter()
    reason, _ = await asyncio.gather(engine.learn_copies(source.manifest), source.send_weights())
    report("transfer/learning_s", time.perf_counter() - started, "s")
    print("learnt" if not reason else f"not learnt: {reason}", flush=True)
    report("transfer/learnt", float(not reason), "bool")
    source.draw(2)
    await once(2)
    copied = await engine.digest()
    with alone():
        reports = [await once(version) for version in range(3, 3 + REPEATS)]
        print([(round(r.pause_seconds, 4), round(r.transfer_seconds, 4)) for r in reports], source.seconds, flush=True)
        gigabytes = source.manifest.total_bytes / 1e9
        transfer = statistics.median(r.transfer_seconds for r in reports)
        report("transfer/own_s", transfer, "s")
        report("transfer/own_pause_s", statistics.median(r.pause_seconds for r in reports), "s")
        report("transfer/own_gb_s", gigabytes / transfer, "GB/s")
        report("transfer/own_pack_s", source.seconds["pack"], "s")
        await bare(engine, source)
    await engine._rpc("forget_copies")
    await once(20)
    again = await engine.digest()
    print("digests: loaders", first, "copies", copied, "loaders, same weights", again, flush=True)
    report("transfer/copies_equal_loaders", float(copied == again and copied != first), "bool")


async def bare(engine: VllmEngine, source: Source) -> None:
    """The same buckets over the same link, received and dropped."""
    times = []
    for _ in range(REPEATS):
        await source.prepare_weights()
        sizes = [len(flat) for flat in source.sender._packed]
        started = time.perf_counter()
        await asyncio.gather(engine._rpc("take", sizes), source.send_weights())
        times.append(time.perf_counter() - started)
    print("bare", [round(t, 4) for t in times], flush=True)
    report("transfer/bare_broadcast_s", statistics.median(times), "s")
    report("transfer/bare_gb_s", source.manifest.total_bytes / 1e9 / statistics.median(times), "GB/s")


async def stock(engine: VllmEngine, source: Source) -> None:
    """vLLM 0.26's own NCCL engine with packed tensors."""
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    port = free_port()
    where = {"master_address": "127.0.0.1", "master_port": port, "world_size": 2}

    def join() -> Any:
        torch.cuda.set_device(SENDER)
        return NCCLWeightTransferEngine.trainer_init(where)

    request = WeightTransferInitRequest(init_info=where | {"rank_offset": 1})
    group, _ = await asyncio.gather(asyncio.to_thread(join), engine._llm.init_weight_transfer_engine(request))
    info = {"names": source.manifest.names, "dtype_names": source.manifest.dtypes,
            "shapes": [list(s) for s in source.manifest.shapes], "packed": True}  # fmt: skip

    def send() -> None:
        torch.cuda.set_device(SENDER)
        NCCLWeightTransferEngine.trainer_send_weights(iter(source.weights.items()), {"group": group, "packed": True})
        torch.cuda.synchronize()

    source.draw(1)
    times: list[float] = []
    with alone():
        for _ in range(REPEATS):
            await engine.pause()
            started = time.perf_counter()
            await engine._llm.start_weight_update()
            update = engine._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await asyncio.gather(update, asyncio.to_thread(send))
            await engine._llm.finish_weight_update()
            times.append(time.perf_counter() - started)
            await engine.resume()
    print("stock", [round(t, 4) for t in times], flush=True)
    report("transfer/stock_s", statistics.median(times), "s")


async def main(which: str) -> None:
    torch.cuda.set_device(SENDER)
    with torch.device("meta"):
        shapes = weight_shapes(Qwen3MoeForCausalLM(moe_10gb()))
    with tempfile.TemporaryDirectory() as folder:
        engine = await start_engine(Path(folder) / "moe", "molt" if which == "own" else "nccl")
        try:
            await (own if which == "own" else stock)(engine, Source(shapes))
        finally:
            await engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
