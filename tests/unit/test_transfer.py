"""Bucket plans, and a real gloo link between two processes."""

import multiprocessing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.placement import free_port
from engine.sync.link import Link
from engine.sync.transfer import ALIGNMENT, TransferError, WeightManifest, WeightSender, plan_buckets, receive

DTYPES = ("float32", "bfloat16", "float64", "int8")


def manifest(*tensors: tuple[str, str, tuple[int, ...]], bucket_bytes: int) -> WeightManifest:
    names, dtypes, shapes = zip(*tensors)
    return WeightManifest(list(names), list(dtypes), list(shapes), bucket_bytes)


def test_tensors_fill_buckets_in_order_and_start_aligned():
    plan = plan_buckets(
        manifest(
            ("a", "int8", (3,)),
            ("b", "float32", (2, 2)),
            ("c", "bfloat16", (8,)),
            ("large", "float32", (20,)),
            ("d", "float32", ()),
            bucket_bytes=48,
        )
    )
    assert [[(s.name, s.offset, s.nbytes) for s in b.slots] for b in plan] == [
        [("a", 0, 3), ("b", 16, 16), ("c", 32, 16)],
        [("large", 0, 80)],
        [("d", 0, 4)],
    ]
    assert [b.nbytes for b in plan] == [48, 80, 4]


def test_total_bytes_leaves_padding_out():
    assert manifest(("a", "int8", (3,)), ("b", "bfloat16", (2, 3)), bucket_bytes=64).total_bytes == 15


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=20), st.integers(1, 600))
def test_every_tensor_has_a_place_of_its_own(tensors, bucket_bytes):
    wanted = manifest(*((f"t{i}", d, s) for i, (d, s) in enumerate(tensors)), bucket_bytes=bucket_bytes)
    plan = plan_buckets(wanted)
    slots = [s for b in plan for s in b.slots]
    assert [s.name for s in slots] == wanted.names and sum(s.nbytes for s in slots) == wanted.total_bytes
    for bucket in plan:
        assert len(bucket.slots) == 1 or bucket.nbytes <= bucket_bytes
        ends = 0
        for slot in bucket.slots:
            assert slot.offset >= ends and slot.offset % ALIGNMENT == 0
            ends = slot.offset + slot.nbytes
        assert bucket.nbytes == ends


TENSORS = {
    "embed": torch.arange(12, dtype=torch.float32).view(3, 4) / 7,
    "scale": torch.tensor(3.5),
    "large": torch.linspace(-1, 1, 300),
    "tail": torch.ones(5),
}
PLAN = manifest(*((n, "bfloat16", tuple(t.shape)) for n, t in TENSORS.items()), bucket_bytes=256)


def receive_twice(port, results):
    torch.set_num_threads(1)
    link = Link("127.0.0.1", port, rank=1, world=2, timeout_s=30)
    for _ in range(2):
        results.put([(n, t.float().numpy()) for named in receive(link, PLAN) for n, t in named])


def test_a_link_carries_the_tensors_cast_to_the_manifests_dtype():
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), free_port()
    receiver = context.Process(target=receive_twice, args=(port, results), daemon=True)
    receiver.start()
    sender = WeightSender(Link("127.0.0.1", port, rank=0, world=2, timeout_s=30), PLAN)
    for factor in (1.0, -2.0):
        sent = {name: tensor * factor for name, tensor in TENSORS.items()}
        sender.pack(iter(sent.items()))
        assert sender.send() == PLAN.total_bytes
        received = dict(results.get(timeout=30))
        assert list(received) == list(sent)
        for name, tensor in sent.items():
            torch.testing.assert_close(torch.from_numpy(received[name]), tensor.bfloat16().float(), rtol=0, atol=0)
    receiver.join(30)
    assert receiver.exitcode == 0


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([("other", torch.ones(2))], r"expects a \(2,\), the trainer has other \(2,\)"),
        ([("a", torch.ones(3))], r"expects a \(2,\), the trainer has a \(3,\)"),
        ([], r"expects a \(2,\), the trainer has nothing"),
        ([("a", torch.ones(2)), ("b", torch.ones(2))], "more weights than the manifest"),
    ],
)
def test_a_sender_refuses_what_the_manifest_does_not_say(sent, message):
    link = Link("127.0.0.1", free_port(), rank=0, world=1)
    with pytest.raises(TransferError, match=message):
        WeightSender(link, manifest(("a", "float32", (2,)), bucket_bytes=64)).pack(iter(sent))


def test_what_was_not_packed_is_not_sent():
    link = Link("127.0.0.1", free_port(), rank=0, world=1)
    sender = WeightSender(link, manifest(("a", "float32", (2,)), bucket_bytes=64))
    sender.pack([("a", torch.ones(2))])
    assert sender.send() == 8
    with pytest.raises(TransferError, match="call pack"):
        sender.send()
