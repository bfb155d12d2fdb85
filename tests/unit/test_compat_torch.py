"""Contracts of the private parts of torch that weight transfer relies on; links between GPUs are in tests/gpu."""

import pytest
import torch
from torch.multiprocessing import reductions

from engine import compat
from engine.placement import free_port


def test_a_group_broadcasts_rank_0s_bytes_and_hands_out_work_to_wait_for():
    group = compat.gloo_group("127.0.0.1", free_port(), rank=0, world=1, timeout_s=10)
    sent = torch.arange(4, dtype=torch.uint8)
    compat.broadcast(group, sent).wait()
    group.barrier().wait()
    assert sent.tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch has no NCCL")
def test_nccl_groups_are_made_as_gloos():
    options = torch.distributed.ProcessGroupNCCL.Options()
    assert hasattr(options, "_timeout")


def test_fused_copies_copy_views_of_different_types_and_none_at_all():
    targets, sources = [torch.zeros(2, 3), torch.zeros(4, 4)[1:3, :2]], [torch.ones(2, 3).bfloat16(), torch.full((2, 2), 2.0)]
    compat.fused_copy(targets, sources)
    assert torch.equal(targets[0], torch.ones(2, 3)) and torch.equal(targets[1], torch.full((2, 2), 2.0))
    compat.fused_copy([], [])


def test_an_ipc_handle_is_a_function_and_its_arguments(monkeypatch):
    monkeypatch.setattr(reductions, "reduce_tensor", lambda tensor: (torch.add, (tensor, 1)))
    assert compat.open_ipc_handle(compat.ipc_handle(torch.zeros(2))).tolist() == [1, 1]
