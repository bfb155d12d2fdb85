"""Publications as plain copies, learnt from loaders that fuse, cut and pad as vLLM's do."""

import pytest
import torch
from torch import nn

from engine.sync.copies import NotCopies, learn
from engine.sync.transfer import WeightManifest, WeightSender

D, V, PADDED = 4, 5, 8


class Tape:
    """A link to itself; like NCCL's, it fills two buffers in turn."""

    device = torch.device("cpu")

    def __init__(self):
        self.sent = []

    def send(self, flats):
        self.sent = [flat.clone() for flat in flats]

    def receive(self, sizes):
        buffers = [torch.empty(max(sizes), dtype=torch.uint8) for _ in range(2)]
        for index, (flat, size) in enumerate(zip(self.sent, sizes, strict=True)):
            yield buffers[index % 2][:size].copy_(flat)


class Sampler(nn.Module):
    """Rank 1 of 2: q and k fused in one parameter, experts stacked, the vocabulary padded, `wide` kept in float32."""

    def __init__(self):
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(D, D))  # its half of q, then its half of k
        self.experts = nn.Parameter(torch.zeros(2, D // 2, D))
        self.down = nn.Parameter(torch.zeros(D, D // 2))
        self.embed = nn.Parameter(torch.full((PADDED, D), 7.0))
        self.wide = nn.Parameter(torch.zeros(3))

    def load(self, named):
        half = D // 2
        for name, weight in named:
            if name in ("q", "k"):
                self.qk.data.narrow(0, half * (name == "k"), half).copy_(weight.narrow(0, half, half))
            elif name.startswith("expert"):
                self.experts.data[int(name[-1])].copy_(weight.narrow(0, half, half))
            elif name == "down":
                self.down.data.copy_(weight.narrow(1, half, half))
            elif name == "embed":
                self.embed[:V].data.copy_(weight)
                self.embed[V:].data.fill_(0)
            else:
                self.wide.data.copy_(weight)


SHAPES = {"q": (D, D), "k": (D, D), "expert0": (D, D), "expert1": (D, D), "down": (D, D), "embed": (V, D), "wide": (3,)}
MANIFEST = WeightManifest(list(SHAPES), ["bfloat16"] * len(SHAPES), list(SHAPES.values()), bucket_bytes=80)


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}


def sampler_with(named):
    model = Sampler()
    with torch.no_grad():
        model.load(named.items())
    return model


def sent(named):
    tape = Tape()
    sender = WeightSender(tape, MANIFEST)
    sender.pack(named.items())
    sender.send()
    return tape


def test_a_learnt_publication_gives_what_the_loaders_give():
    model, first = sampler_with(weights(0)), weights(0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan = learn(model, model.load, MANIFEST, sent(first))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters()), "learning wrote something"
    for seed in (1, 2):
        plan.receive(sent(weights(seed)))
        expected = sampler_with(weights(seed))
        for (name, got), wanted in zip(model.named_parameters(), expected.parameters()):
            assert torch.equal(got, wanted), name


def test_a_layout_of_the_kernels_own_is_refused():
    model = sampler_with(weights(0))
    model.down.data = model.down.data.flip(0).contiguous()
    with pytest.raises(NotCopies, match="layout"):
        learn(model, model.load, MANIFEST, sent(weights(0)))


def test_a_loader_that_computes_is_refused_and_the_publication_is_taken_to_its_end():
    model = sampler_with(weights(0))

    def load(named):
        model.load((name, weight * 1 if name == "q" else weight) for name, weight in named)

    class Counting(Tape):
        taken = 0

        def receive(self, sizes):
            for flat in super().receive(sizes):
                self.taken += 1
                yield flat

    link = Counting()
    link.sent = sent(weights(0)).sent
    with pytest.raises(NotCopies, match="before it copies"):
        learn(model, load, MANIFEST, link)
    assert link.taken == len(link.sent)


def test_a_parameter_that_is_filled_in_part_is_refused():
    model = sampler_with(weights(0))

    def load(named):
        model.load((name, weight) for name, weight in named if name != "expert1")

    with pytest.raises(NotCopies, match=r"fills 1 parameters .*'experts'"):
        learn(model, load, MANIFEST, sent(weights(0)))
