import pytest
import torch
from helpers import tiny_model

from engine.compat import moe_layers
from engine.train.device import ModelFlops, explained


def test_flops_by_hand():
    # 10 parameters and attention of 3 x 2 x 4: 6 * 10 * 5 + 6 * 24 * 25 for one sequence of 5 tokens.
    assert ModelFlops(10, 24).training([5]) == 300 + 3600
    assert ModelFlops(10, 24).training([5, 1]) == 3900 + 60 + 144


def test_experts_that_a_token_is_not_sent_to_and_the_embedding_do_no_work():
    model = tiny_model()
    flops = ModelFlops.of(model, moe_layers(model))
    experts = 2 * 8 * (2 * 24 * 32 + 32 * 24)  # layers x experts x (gate and up, down)
    assert flops.parameters == sum(p.numel() for p in model.parameters()) - 17 * 32 - experts * 6 / 8
    assert flops.attention == 2 * 4 * 8
    tied = tiny_model(moe=False, tie=True)
    assert ModelFlops.of(tied, []).parameters == sum(p.numel() for p in tied.parameters())


def test_exhausted_memory_names_the_phase_and_the_flag():
    expected = r"out of GPU memory in forward_backward .*train\.max_tokens_per_gpu"
    with pytest.raises(RuntimeError, match=expected), explained("forward_backward"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(ValueError, match="other"), explained("optim"):
        raise ValueError("other")
