import math

import pytest
import torch
from torch import nn

from engine.config import AdamConfig
from engine.train.optimizer import build_adamw, grad_norm, learning_rate_scale, update


def scales(total, **options):
    return [learning_rate_scale(s, total, **options) for s in range(total)]


def test_warm_up_then_constant():
    assert scales(5, warmup_ratio=0.4) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_reaches_the_floor_at_the_last_step():
    assert scales(5, shape="linear", min_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_after_warm_up():
    expected = [1.0] + [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * k / 3)) for k in range(4)]
    assert scales(5, shape="cosine", warmup_ratio=0.2, min_ratio=0.1) == pytest.approx(expected)
    assert learning_rate_scale(99, 5, shape="cosine", min_ratio=0.1) == pytest.approx(0.1)


def test_a_shape_with_an_end_needs_one():
    assert learning_rate_scale(3, None, warmup_ratio=0.5) == 1.0
    with pytest.raises(ValueError, match=r"train\.max_steps"):
        learning_rate_scale(3, None, shape="linear")


@pytest.mark.parametrize("on_host", [False, True])
def test_a_norm_over_the_bound_scales_what_adam_gets(on_host):
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    optimizer = build_adamw(parameters, AdamConfig(betas=(0.9, 0.99)), on_host)
    for bound, share in ((1.0, 0.2), (50.0, 1.0)):
        parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
        assert grad_norm(parameters) == pytest.approx(5.0)
        before = [optimizer.state[p]["exp_avg"].clone() for p in parameters]
        assert update(optimizer, parameters, bound) == pytest.approx(5.0)
        # exp_avg = 0.9 exp_avg + 0.1 g
        moved = [10 * (optimizer.state[p]["exp_avg"] - 0.9 * old) for p, old in zip(parameters, before, strict=True)]
        torch.testing.assert_close(moved, [torch.tensor([3.0 * share, 0.0]), torch.tensor([4.0 * share])], atol=1e-4, rtol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_no_weight(bad):
    weight = nn.Parameter(torch.ones(1, 2))
    optimizer = build_adamw([weight], AdamConfig(lr=0.1, weight_decay=0.5))
    weight.grad = torch.tensor([[1.0, bad]])
    assert not math.isfinite(update(optimizer, [weight], 1.0))
    assert weight.tolist() == [[1.0, 1.0]] and weight.grad is None
    assert optimizer.state[weight]["exp_avg"].tolist() == [[0.0, 0.0]] and optimizer.state[weight]["step"] == 0
    weight.grad = torch.tensor([[3.0, 4.0]])
    assert update(optimizer, [weight], 1.0) == pytest.approx(5.0) and weight[0, 0] < 1


def test_adam_on_the_host_has_its_own_copy_of_scale_and_verdict():
    """torch copies them from a device without waiting for it."""

    class OnDevice:
        def __init__(self, value):
            self.value = value

        def cpu(self):
            return torch.tensor(self.value)

    weight = nn.Parameter(torch.zeros(1))
    optimizer = build_adamw([weight], AdamConfig(betas=(0.9, 0.99)), on_host=True)
    weight.grad = torch.tensor([4.0])
    optimizer.grad_scale, optimizer.found_inf = OnDevice(2.0), OnDevice(0.0)
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].item() == pytest.approx(0.1 * 4.0 / 2.0)


def test_first_step_of_adamw_by_hand():
    weight, bias = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    optimizer = build_adamw([weight, bias], AdamConfig(lr=0.1, weight_decay=0.5, eps=1e-12))
    weight.grad, bias.grad = torch.full((1, 1), 2.0), torch.full((1,), -2.0)
    optimizer.step()
    # The first step moves by lr against the sign of the gradient; decay acts on the matrix alone: 1 - 0.1 * 0.5 - 0.1.
    assert weight.item() == pytest.approx(0.85)
    assert bias.item() == pytest.approx(1.1)


def test_adam_on_the_host_takes_the_same_steps_and_survives_a_checkpoint(layout):
    def run(on_host):
        torch.manual_seed(0)
        weight, bias = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))
        optimizer = build_adamw([weight, bias], AdamConfig(lr=0.1, weight_decay=0.5), on_host)
        for step in range(4):
            weight.grad, bias.grad = torch.randn(3, 2), torch.randn(2)
            optimizer.step()
            if step == 1:
                optimizer.load_state_dict(optimizer.state_dict())
        return weight.detach(), bias.detach(), float(optimizer.state[bias]["step"])

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
