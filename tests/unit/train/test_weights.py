import json

import pytest
import torch
from helpers import config, order, rollouts, save_tiny
from safetensors.torch import load_file

from engine.sync.transfer import receive
from engine.train import actor
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from engine.train.weights import checkpoint_tensors, gathered_weights, weight_shapes


def trainer(path: str, **sections) -> Trainer:
    made = Trainer(get=lambda references: references)
    made.setup(TrainerSpec(config(**sections), path))
    return made


@pytest.mark.parametrize(("moe", "tie"), [(True, True), (True, False), (False, True)])
def test_names_and_values_are_those_of_save_pretrained(layout, tmp_path, moe, tie):
    made = trainer(save_tiny(tmp_path, moe=moe, tie=tie))
    saved = load_file(tmp_path / "model.safetensors")
    sent = dict(gathered_weights(made.policy.lm, torch.float32))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)
    assert weight_shapes(made.policy.lm) == [(n, tuple(t.shape)) for n, t in sent.items()]


def test_fused_experts_are_split_by_hand():
    fused = torch.arange(2 * 4 * 1).view(2, 4, 1)
    named = {n: t.flatten().tolist() for n, t in checkpoint_tensors("l.mlp.experts.gate_up_proj", fused)}
    assert named == {
        "l.mlp.experts.0.gate_proj.weight": [0, 1],
        "l.mlp.experts.0.up_proj.weight": [2, 3],
        "l.mlp.experts.1.gate_proj.weight": [4, 5],
        "l.mlp.experts.1.up_proj.weight": [6, 7],
    }
    assert [n for n, _ in checkpoint_tensors("l.mlp.down_proj.weight", fused)] == ["l.mlp.down_proj.weight"]


def test_gathered_weights_do_not_follow_training(layout, tmp_path):
    made = trainer(save_tiny(tmp_path))
    gathered = dict(gathered_weights(made.policy.lm, torch.float32))
    copies = {name: tensor.clone() for name, tensor in gathered.items()}
    made.train(order(rollouts(4)))
    assert all(torch.equal(gathered[name], copies[name]) for name in copies)


def test_export_loads_in_transformers(layout, tmp_path):
    from transformers import AutoModelForCausalLM

    made = trainer(save_tiny(tmp_path / "model", tie=True), vllm={"dtype": "bfloat16"})
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    made.train(order(rollouts(4)))
    made.save(str(tmp_path / "step-000001"), hf=True)
    export = tmp_path / "step-000001" / "hf"
    assert (export / "tokenizer.json").read_text() == "{}"
    settings = json.loads((export / "config.json").read_text())
    assert settings["architectures"] == ["Qwen3MoeForCausalLM"] and settings["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(export, dtype=torch.bfloat16).state_dict()
    ours = made.policy.lm.state_dict()
    assert loaded.keys() == ours.keys()
    assert all(torch.equal(loaded[name], ours[name].full_tensor().bfloat16()) for name in loaded)


class Tape:
    """A link to itself: what was sent is what is received."""

    device = torch.device("cpu")

    def __init__(self, *_where):
        self.sent = []

    def send(self, flats):
        self.sent += [flat.clone() for flat in flats]

    def receive(self, sizes):
        assert [len(flat) for flat in self.sent] == list(sizes)
        yield from self.sent


def test_what_was_prepared_arrives_in_the_samplers_dtype(layout, tmp_path, monkeypatch):
    made = trainer(save_tiny(tmp_path, tie=True), vllm={"dtype": "bfloat16"})
    monkeypatch.setattr(actor, "open_link", Tape)
    made.init_transfer("127.0.0.1", 0, world=2)
    made.prepare_weights()
    expected = {name: tensor.clone() for name, tensor in gathered_weights(made.policy.lm, torch.bfloat16)}
    made.train(order(rollouts(4)))
    made.send_weights()
    arrived = {name: t for bucket in receive(made._sender.link, made.weight_manifest()) for name, t in bucket}
    assert arrived.keys() == expected.keys()
    assert all(torch.equal(arrived[name], expected[name]) for name in expected)
