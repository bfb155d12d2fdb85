"""A packed row computes what padded rows compute."""

import pytest
import torch
from helpers import config, order, rollouts, save_tiny, tiny_model

from engine.compat import moe_layers
from engine.train.actor import Trainer
from engine.train.balance import form_micro_batches
from engine.train.model import ModelOptions, shard_policy
from engine.train.packing import Packing
from engine.train.plan import TrainerSpec


def test_where_the_inputs_come_from_by_hand():
    packing = Packing.of([3, 2], 3, torch.device("cpu"))
    assert packing.kept_N.tolist() == [0, 1, 2]  # of [[a, b], [c, padding]]
    assert packing.positions_1M.tolist() == [[0, 1, 0]]
    assert packing.lengths == [2, 1]
    assert packing.place(torch.tensor([[7.0], [8.0], [9.0]]), 4).flatten().tolist() == [7, 8, 9, 0]


def test_micro_batches_are_filled_by_their_sum_of_lengths():
    lengths = [5, 4, 1, 1]
    assert form_micro_batches(range(4), lengths, 10, packed=True) == [[0, 1, 2], [3]]
    assert form_micro_batches(range(4), lengths, 10) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_values_and_gradients_equal_those_of_padded_rows(layout, checkpointing):
    ids_BT = torch.randint(0, 17, (3, 9))
    lengths = [9, 5, 2]
    wanted_BT = (torch.arange(9) < torch.tensor(lengths)[:, None]) & (torch.arange(9) > 0)

    def run(packed):
        model = tiny_model(moe=False)
        policy = shard_policy(model, layout, ModelOptions(packed=packed, gradient_checkpoint=checkpointing))
        packing = Packing.of(lengths, 9, torch.device("cpu")) if packed else None
        logprobs_BT = policy(ids_BT, wanted_BT, packing=packing).logprobs_BT
        (logprobs_BT * torch.arange(9)).sum().backward()
        return logprobs_BT.detach(), {n: p.grad.full_tensor() for n, p in policy.named_parameters()}

    padded, packed = run(False), run(True)
    torch.testing.assert_close(packed[0], padded[0], atol=1e-6, rtol=1e-5)
    for name, gradient in padded[1].items():
        torch.testing.assert_close(packed[1][name], gradient, atol=1e-4, rtol=1e-4, msg=name)


def test_training_with_replay_and_traces_is_the_same_with_and_without_packing(layout, tmp_path):
    path = save_tiny(tmp_path / "model")
    assert len(moe_layers(tiny_model())) == 2

    def run(packing):
        trainer = Trainer(get=lambda references: references)
        settings = config(
            train={"routing_replay": True}, actor={"gradient_checkpoint": "full"}, fsdp={"packing_samples": packing}
        )
        trainer.setup(TrainerSpec(settings, path))
        report = trainer.train(order(rollouts(7), budget=40, trace=True))
        return report.metrics, {t.sample: t for t in report.traces}, trainer.score([[1, 2, 3, 4], [5, 6]])

    (metrics, traces, scores), (packed_metrics, packed_traces, packed_scores) = run(False), run(True)
    for key, value in metrics.items():
        assert packed_metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    assert traces.keys() == packed_traces.keys()
    for sample, trace in traces.items():
        assert packed_traces[sample].logprobs == pytest.approx(trace.logprobs, abs=1e-5)
        assert (packed_traces[sample].routing_mismatch == trace.routing_mismatch).all()
    for ours, theirs in zip(packed_scores, scores, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
