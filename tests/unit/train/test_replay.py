import pytest
import torch
from helpers import EXPERTS, TOP_K, VOCAB, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from engine.compat import moe_layers
from engine.train.model import ModelOptions, shard_policy
from engine.train.replay import RoutingReplay, RoutingTargets, differs_as_set, finish_routing, routing_sums

ROWS, WIDTH = 3, 7
INPUTS = ROWS * (WIDTH - 1)


def targets(layers: int, missing: float = 0.0, seed: int = 3) -> RoutingTargets:
    generator = torch.Generator().manual_seed(seed)
    ids_NLk = torch.rand(INPUTS, layers, EXPERTS, generator=generator).argsort(-1)[..., :TOP_K]
    ids_NLk[torch.rand(INPUTS, layers, generator=generator) < missing] = -1
    return RoutingTargets(ids_NLk, torch.ones(INPUTS, dtype=torch.bool))


def batch():
    torch.manual_seed(2)
    wanted_BT = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    wanted_BT[:, :2] = False
    return torch.randint(0, VOCAB, (ROWS, WIDTH)), wanted_BT


def run(model, layout, given_targets, replay=True, checkpointing="none"):
    """One forward and backward; returns log-probs, gradients by name, and the finished metrics with the raw sums."""
    routing = RoutingReplay(moe_layers(model), replay)
    policy = shard_policy(model, layout, ModelOptions(gradient_checkpoint=checkpointing))
    routing.begin(given_targets)
    logprobs_BT = policy(*batch()).logprobs_BT
    logprobs_BT.sum().backward()
    sums, mismatch_NL = routing.end()
    gradients = {n: p.grad.full_tensor() for n, p in policy.lm.named_parameters()}
    return logprobs_BT.detach(), gradients, finish_routing(sums), sums, mismatch_NL


class NaiveMoe(torch.nn.Module):
    """The MoE block written out: given ids, weights from the live router, one expert at a time."""

    def __init__(self, block, ids_Nk):
        super().__init__()
        self.gate, self.experts, self.ids_Nk = block.gate, block.experts, ids_Nk

    def forward(self, hidden_BTD):
        flat_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        probs_NE = (flat_ND @ self.gate.weight.T).softmax(-1)
        out = []
        for n, ids_k in enumerate(self.ids_Nk):
            ids_k = torch.where(ids_k >= 0, ids_k, probs_NE[n].topk(TOP_K).indices)
            weights_k = probs_NE[n, ids_k] / probs_NE[n, ids_k].sum()
            parts = []
            for weight, expert in zip(weights_k, ids_k):
                gate, up = (self.experts.gate_up_proj[expert] @ flat_ND[n]).chunk(2)
                parts.append(weight * (self.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)))
            out.append(torch.stack(parts).sum(0))
        return torch.stack(out).view_as(hidden_BTD)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_replay_equals_a_written_out_model(layout, checkpointing, missing):
    given_targets = targets(2, missing)
    reference = tiny_model()
    for index, layer in enumerate(reference.model.layers):
        layer.mlp = NaiveMoe(layer.mlp, given_targets.ids_NLk[:, index])
    ids_BT, wanted_BT = batch()
    logits_BTV = reference(input_ids=ids_BT[:, :-1], use_cache=False).logits
    picked_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    (picked_BT * wanted_BT[:, 1:]).sum().backward()

    logprobs_BT, gradients, metrics, sums, _ = run(tiny_model(), layout, given_targets, checkpointing=checkpointing)
    torch.testing.assert_close(logprobs_BT[:, 1:], (picked_BT * wanted_BT[:, 1:]).detach(), atol=1e-5, rtol=1e-5)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=name)
    routers = [g for n, g in gradients.items() if n.endswith("mlp.gate.weight")]
    assert len(routers) == 2 and all(g.abs().max() > 1e-4 for g in routers)
    assert metrics["routing/replayed_mismatch_frac"] == 0
    passes = 2 if checkpointing == "full" else 1
    assert sums["routing/consumed"] == passes * sums["routing/reported"]


def test_rows_without_a_report_keep_the_live_choice_and_are_counted(layout):
    nothing = RoutingTargets(torch.full((INPUTS, 2, TOP_K), -1), torch.ones(INPUTS, dtype=torch.bool))
    replayed, _, metrics, _, _ = run(tiny_model(), layout, nothing)
    live, _, _, _, _ = run(tiny_model(), layout, nothing, replay=False)
    assert torch.equal(replayed, live)
    assert metrics == {"routing/coverage_frac": 0.0, "routing/missing_frac": 1.0}


def test_without_replay_the_mismatch_reaches_the_experts(layout):
    _, _, metrics, _, mismatch_NL = run(tiny_model(), layout, targets(2), replay=False)
    assert metrics["routing/mismatch_frac"] > 0.5
    assert metrics["routing/replayed_mismatch_frac"] == metrics["routing/mismatch_frac"]
    assert metrics["routing/mismatch_frac"] == pytest.approx(mismatch_NL.double().mean().item())


def test_replaying_the_live_choice_changes_nothing(layout):
    chosen = {}
    model = tiny_model()
    for layer in moe_layers(model):
        layer.router.register_forward_hook(lambda _m, _i, out, k=layer.layer_id: chosen.__setitem__(k, out[2].clone()))
    live, gradients, _, _, _ = run(model, layout, targets(2), replay=False)
    recorded = RoutingTargets(torch.stack([chosen[0], chosen[1]], 1).flip(-1), torch.ones(INPUTS, dtype=torch.bool))
    replayed, same_gradients, metrics, _, _ = run(tiny_model(), layout, recorded)
    assert metrics["routing/mismatch_frac"] == 0 and metrics["routing/token_mismatch_frac"] == 0
    torch.testing.assert_close(replayed, live, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        same_gradients["model.layers.0.mlp.gate.weight"], gradients["model.layers.0.mlp.gate.weight"], atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"mlp_only_layers": [0]}, [1, 2]), ({"decoder_sparse_step": 2}, [1]), ({"mlp_only_layers": [1]}, [0, 2])],
)
def test_layers_are_global_ids(changes, expected):
    assert [layer.layer_id for layer in moe_layers(tiny_model(layers=3, **changes))] == expected


def test_counts_by_hand():
    # Three inputs, two layers; the second input is the last token of its segment and not counted.
    ids_NLk = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[4, 5], [-1, -1]]])
    live_NLk = torch.tensor([[[1, 0], [2, 4]], [[7, 6], [7, 6]], [[4, 6], [0, 1]]])
    counted_N = torch.tensor([True, False, True])
    consumed = [[ids_NLk[:, 0]], [torch.tensor([[3, 2], [0, 1], [0, 1]])]]
    sums, mismatch_NL = routing_sums(RoutingTargets(ids_NLk, counted_N), live_NLk, consumed)
    assert mismatch_NL.tolist() == [[False, True], [False, False], [True, False]]
    assert finish_routing(sums) == {
        "routing/mismatch_frac": pytest.approx(2 / 3),
        "routing/token_mismatch_frac": 1.0,
        "routing/replayed_mismatch_frac": 0.0,
        "routing/coverage_frac": 0.75,
        "routing/missing_frac": 0.25,
        "routing/layer_mismatch": [0.5, 1.0],
    }


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4, unique=True), st.randoms())
def test_order_of_experts_does_not_matter(ids, random):
    shuffled = random.sample(ids, len(ids))
    assert not differs_as_set(torch.tensor(ids), torch.tensor(shuffled))
    assert differs_as_set(torch.tensor(ids), torch.tensor([*ids[:-1], 7]))
