"""AutoModel's classes do what transformers' do: values, gradients, routing, weights, checkpoints; whole, sharded, and with
experts shared. Needs nemo-automodel (`make automodel`)."""

import importlib.util
import socket

import pytest
import torch
import torch.multiprocessing as multiprocessing
from automodel_ranks import main
from helpers import save_tiny
from two_ranks import CONFIG, train_all

from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nemo_automodel") is None, reason="nemo_automodel is not installed: make automodel"
)
# Dense first layer, as many MoE models have one.
SHAPE = {"layers": 3, "mlp_only_layers": [0]}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("automodel") / "model", **SHAPE)


@pytest.fixture(scope="module")
def expected(model_path, mesh):
    """The same training with transformers' class on one rank."""
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(CONFIG, model_path))
    return train_all(trainer, ranks=1, budget=1000)


@pytest.fixture(scope="module", params=[(1, 1), (2, 1), (2, 2)], ids=["one rank", "two ranks", "two ranks share experts"])
def runs(request, model_path, tmp_path_factory):
    world, ep_size = request.param
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(main, args=(world, ep_size, model_path, str(folder), port), nprocs=world)
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(world)], folder


def flat(tensors):
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def test_it_is_automodel_that_trains_and_its_moe_layers_have_global_ids(runs):
    for result in runs[0]:
        assert "nemo_automodel" in result["kinds"]
        assert result["facts"]["moe_layers"] == [1, 2]


def test_metrics_equal_those_of_transformers(runs, expected):
    """Log-probs, routing replayed through recomputation, and the norm of all gradients (experts divided) are in them."""
    for result in runs[0]:
        for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                assert ours[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_gradients_equal_those_of_transformers(runs, expected):
    for ours, theirs in zip(runs[0][0]["gradients"], expected["gradients"], strict=True):
        assert ours.keys() == theirs.keys()
        assert (flat(ours) - flat(theirs)).norm() / flat(theirs).norm() < 1e-5


def test_trained_weights_have_the_names_and_values_of_transformers(runs, expected):
    for name, tensor in expected["weights"].items():
        torch.testing.assert_close(runs[0][0]["weights"][name], tensor, atol=1e-5, rtol=1e-4, msg=name)
    manifest = runs[0][0]["manifest"]
    assert dict(zip(manifest.names, map(tuple, manifest.shapes))) == {n: tuple(t.shape) for n, t in expected["weights"].items()}


def test_checkpoints_give_back_the_same_model_and_export_loads_in_transformers(runs, expected):
    from transformers import AutoModelForCausalLM

    results, folder = runs
    for result in results:
        for before, after in zip(result["trained"], result["reloaded"], strict=True):
            assert before.tolist() == after.tolist()
    exported = AutoModelForCausalLM.from_pretrained(folder / "step-000003" / "hf", dtype=torch.float32)
    logits_BTV = exported(input_ids=torch.tensor([[1, 2, 3, 4]])).logits
    scored = logits_BTV.log_softmax(-1)[0, [0, 1, 2], [2, 3, 4]]
    assert scored.tolist() == pytest.approx(results[0]["trained"][0].tolist(), abs=1e-5)
