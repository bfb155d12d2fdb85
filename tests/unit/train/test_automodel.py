"""AutoModel's classes do what transformers' do: values, gradients, routing, weights, checkpoints; whole, sharded, and with
experts and rows shared. Needs nemo-automodel (`make automodel`)."""

import importlib.util
import socket

import pytest
import torch
import torch.multiprocessing as multiprocessing
from automodel_ranks import main, moe_layers_of, trainer_spec
from helpers import save_tiny
from two_ranks import train_all

from engine.train.actor import Trainer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nemo_automodel") is None, reason="nemo_automodel is not installed: make automodel"
)
CASES = {
    "one rank": ("moe", 1, 1, 1, False),
    "two ranks": ("moe", 2, 1, 1, False),
    "two ranks share experts, packed": ("moe", 2, 2, 1, True),
    "two ranks share experts and rows": ("moe", 2, 2, 2, True),
    "dense, packed": ("dense", 1, 1, 1, True),
    "dense, two ranks share rows": ("dense", 2, 1, 2, True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory, layout):
    """Two models by kind, each with the same training done by transformers' class on one rank."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for kind in ("moe", "dense"):
        # A dense first layer, as many MoE models have one.
        shape = {"mlp_only_layers": [0]} if kind == "moe" else {"moe": False}
        path = save_tiny(folder / kind, layers=3, **shape)
        trainer = Trainer(get=lambda references: references)
        trainer.setup(trainer_spec(path))
        found[kind] = path, train_all(trainer, ranks=1, budget=1000, layers=moe_layers_of(path))
    return found


@pytest.fixture(scope="module", params=CASES)
def case(request, models, tmp_path_factory):
    """Results of the ranks, what is expected of them, and their folder."""
    kind, world, ep_size, cp_size, packed = CASES[request.param]
    path, expected = models[kind]
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(main, args=(world, ep_size, cp_size, packed, path, str(folder), port), nprocs=world)
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(world)], expected, folder


def flat(tensors):
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def test_it_is_automodel_that_trains_and_its_moe_layers_have_global_ids(case):
    results, expected, _ = case
    for result in results:
        assert "nemo_automodel" in result["kinds"]
        assert result["facts"]["moe_layers"] == ([1, 2] if "routing/mismatch_frac" in expected["metrics"][0] else [])


def test_metrics_equal_those_of_transformers(case):
    """Log-probs, routing replayed through recomputation, and the norm of all gradients (experts divided) are in them."""
    results, expected, _ = case
    for result in results:
        for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                assert ours[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_gradients_equal_those_of_transformers(case):
    (first, *_), expected, _ = case
    for ours, theirs in zip(first["gradients"], expected["gradients"], strict=True):
        assert ours.keys() == theirs.keys()
        assert (flat(ours) - flat(theirs)).norm() / flat(theirs).norm() < 1e-5


def test_trained_weights_have_the_names_and_values_of_transformers(case):
    (first, *_), expected, _ = case
    for name, tensor in expected["weights"].items():
        torch.testing.assert_close(first["weights"][name], tensor, atol=1e-5, rtol=1e-4, msg=name)
    manifest = first["manifest"]
    assert dict(zip(manifest.names, map(tuple, manifest.shapes))) == {n: tuple(t.shape) for n, t in expected["weights"].items()}


def test_checkpoints_give_back_the_same_model_and_export_loads_in_transformers(case):
    from transformers import AutoModelForCausalLM

    results, _, folder = case
    for result in results:
        for before, after in zip(result["trained"], result["reloaded"], strict=True):
            assert before.tolist() == after.tolist()
    exported = AutoModelForCausalLM.from_pretrained(folder / "step-000003" / "hf", dtype=torch.float32)
    logits_BTV = exported(input_ids=torch.tensor([[1, 2, 3, 4]])).logits
    scored = logits_BTV.log_softmax(-1)[0, [0, 1, 2], [2, 3, 4]]
    assert scored.tolist() == pytest.approx(results[0]["trained"][0].tolist(), abs=1e-5)
