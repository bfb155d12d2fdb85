"""Links between real GPUs, and what travels over them."""

import multiprocessing

import pytest
import torch

from engine.placement import free_port
from engine.sync.link import open_link
from engine.sync.transfer import WeightManifest, WeightSender, receive

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device")
NAMES = [f"t{i}" for i in range(50)]
PLAN = WeightManifest(NAMES, ["bfloat16"] * 50, [(i + 1, 64) for i in range(50)], bucket_bytes=1 << 14)


def weights(seed, device):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator).bfloat16().to(device) for n, s in zip(PLAN.names, PLAN.shapes)}


def receiving(kind, port, device, results):
    torch.cuda.set_device(device)
    link = open_link(kind, "127.0.0.1", port, 1, 2, device)
    for seed in (1, 2, 3):
        got = {name: tensor.cpu() for bucket in receive(link, PLAN) for name, tensor in bucket}
        wanted = weights(seed, "cpu")
        results.put([name for name in wanted if not torch.equal(got[name], wanted[name])])


@pytest.mark.parametrize(("kind", "device"), [("gloo", "cuda:0"), ("ipc", "cuda:0"), ("nccl", "cuda:1")])
def test_every_publication_arrives_as_it_was_sent(kind, device):
    if kind == "nccl" and GPUS < 2:
        pytest.skip("NCCL needs a GPU for each member")
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), free_port()
    receiver = context.Process(target=receiving, args=(kind, port, device, results), daemon=True)
    receiver.start()
    sender = WeightSender(open_link(kind, "127.0.0.1", port, 0, 2, "cuda:0"), PLAN)
    for seed in (1, 2, 3):
        sender.pack(weights(seed, "cuda:0").items())
        assert sender.send() == PLAN.total_bytes
        assert results.get(timeout=60) == []
    receiver.join(60)
    assert receiver.exitcode == 0
