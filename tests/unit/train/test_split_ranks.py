"""Ranks that split matrices and rows do what one rank does: gradients, metrics, traces, weights, export, checkpoints."""

import socket

import pytest
import torch
import torch.multiprocessing as multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from split_ranks import FOUR_RANKS, TWO_RANKS, Case, four_ranks, run_case

from engine.train.actor import Trainer
from engine.train.layout import split_matrices
from engine.train.packing import Packing, SequenceSplit
from engine.train.plan import TrainerSpec
from engine.train.weights import gathered_weights

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def one_rank(two_rank_run, layout, tmp_path_factory):
    """What one rank computes, by whether the model is dense."""
    return {dense: run_case(Case(dense), two_rank_run.paths, tmp_path_factory.mktemp("one")) for dense in (True, False)}


def flat(tensors):
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def far(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def check(results: list[dict], expected: dict, folder, model_path: str, dense: bool) -> None:
    """Everything that the ranks of one layout did, against one rank."""
    first = results[0]
    assert all(r["metrics"] == first["metrics"] for r in results)
    for ours, theirs in zip(first["metrics"], expected["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=TOLERANCE, abs=1e-6), key
    assert len(first["gradients"]) == 3
    for ours, theirs in zip(first["gradients"], expected["gradients"], strict=True):
        assert far(flat(ours), flat(theirs)) < TOLERANCE
    assert all(torch.equal(flat(r["weights"]), flat(first["weights"])) for r in results)
    assert far(flat(first["weights"]), flat(expected["weights"])) < TOLERANCE
    assert first["moments"] == pytest.approx(expected["moments"], rel=TOLERANCE)
    assert first["manifest"] == expected["manifest"]
    check_traces([t for r in results for t in r["traces"]], expected["traces"])
    for scores in ("scores", "reloaded"):
        for ours, theirs in zip(first[scores], expected["scores"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)
    check_saved(folder, model_path, first["weights"], dense)


def check_traces(actual: list, expected: list) -> None:
    """Every traced sample is reported by one rank alone."""
    ours, theirs = (sorted(traces, key=lambda t: t.sample) for traces in (actual, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert one.sample == other.sample and (one.kept == other.kept).all()
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert (one.routing_mismatch is None) == (other.routing_mismatch is None)
        assert one.routing_mismatch is None or (one.routing_mismatch == other.routing_mismatch).all()


def check_saved(folder, model_path: str, weights: dict, dense: bool) -> None:
    """The export is what transformers loads, and one rank goes on from the checkpoint."""
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(folder / "step-000003" / "hf", dtype=torch.float32).state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in weights.items() if name in exported)
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(Case(dense).config(), model_path))
    trainer.load(str(folder / "step-000003"))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in gathered_weights(trainer.policy.lm, torch.float32))


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_equal_one(name, two_rank_run, one_rank):
    dense, paths = TWO_RANKS[name].dense, two_rank_run.paths
    results = [found[name] for found in two_rank_run.results("splits")]
    check(results, one_rank[dense], two_rank_run.folder / name, paths[2] if dense else paths[0], dense)


@pytest.mark.long
def test_four_ranks_equal_one(two_rank_run, one_rank, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = two_rank_run.paths
    multiprocessing.spawn(four_ranks, args=(paths, str(tmp_path), port), nprocs=4)
    found = [torch.load(tmp_path / f"splits-{rank}.pt", weights_only=False) for rank in range(4)]
    for name, case in FOUR_RANKS.items():
        path = paths[2] if case.dense else paths[0]
        check([results[name] for results in found], one_rank[case.dense], tmp_path / name, path, case.dense)


def test_a_model_without_a_plan_of_columns_and_rows_is_refused(layout):
    from helpers import tiny_model

    with pytest.raises(ValueError, match=r"fsdp\.tp_size: Qwen3MoeModel"):
        split_matrices(tiny_model().model, layout)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(1, 5))
def test_parts_of_a_row_put_together_are_the_row(lengths, size):
    """Every input is on one rank, at its place and with its position; all ranks have the same number of rows."""
    width = max(lengths)
    parts = [Packing.of(lengths, width, torch.device("cpu"), SequenceSplit(rank, size)) for rank in range(size)]
    whole = Packing.of(lengths, width, torch.device("cpu"))
    assert torch.cat([p.kept_N for p in parts]).tolist() == whole.kept_N.tolist()
    positions = torch.cat([p.positions_1M[0] for p in parts]).tolist()
    assert positions[: len(whole.kept_N)] == whole.positions_1M[0].tolist() and len({p.positions_1M.shape for p in parts}) == 1
    padded = torch.arange(1.0, len(lengths) * (width - 1) + 1)
    row = torch.cat([p.pack(padded, -1) for p in parts])
    assert row.tolist() == padded[whole.kept_N].tolist() + [-1] * (len(row) - len(whole.kept_N))
    assert all(sum(p.lengths) == len(row) == p.bounds[-1] for p in parts)
