import torch
from batches import batches, double, quick
from hypothesis import given

from engine.algo.loss import Denominators, finish_policy, value_loss


def test_by_hand():
    # Old value 1, clip 0.2. V 1.1, R 2: 0.81. V 1.5, R 2: max(0.25, (1.2 - 2)^2 = 0.64). V 1.5, R 0: max(2.25, 1.44).
    values = double([[1.1, 1.5, 1.5, 9.0]]).requires_grad_()
    returns, mask = double([[2.0, 2.0, 0.0, 9.0]]), torch.tensor([[True, True, True, False]])
    loss, sums = value_loss(values, double([[1.0] * 4]), returns, mask, 0.2, Denominators(tokens=3))
    loss.backward()
    torch.testing.assert_close(loss.detach(), double((0.81 + 0.64 + 2.25) / 6))
    torch.testing.assert_close(values.grad, double([[-0.9 / 3, 0.0, 1.5 / 3, 0.0]]))
    metrics = finish_policy(sums)
    torch.testing.assert_close(metrics["loss/value_clip_frac"], 1 / 3)
    torch.testing.assert_close(metrics["loss/value"], (0.81 + 0.64 + 2.25) / 6)


@quick
@given(batches())
def test_equals_a_naive_autograd(batch):
    mask, values = torch.tensor(batch.mask), double(batch.current).requires_grad_()
    old, returns = batch.old, batch.mu
    loss, _ = value_loss(values, double(old), double(returns), mask, 0.2, Denominators(7))
    expected = 0 * values.sum()
    for s, row in enumerate(batch.mask):
        for t in [t for t, on in enumerate(row) if on]:
            near = old[s][t] + torch.clamp(values[s, t] - old[s][t], -0.2, 0.2)
            expected = expected + 0.5 * torch.maximum((values[s, t] - returns[s][t]) ** 2, (near - returns[s][t]) ** 2) / 7
    torch.testing.assert_close(loss, expected)
    ours, naive = (torch.autograd.grad(x + 0 * values.sum(), values)[0] for x in (loss, expected))
    torch.testing.assert_close(ours, naive)
