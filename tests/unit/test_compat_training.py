"""Contracts of the private parts of transformers and AutoModel that training relies on."""

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.compat import automodel_available, automodel_causal_lm, moe_layers


@pytest.mark.parametrize("normalised", [True, False])
def test_routers_return_logits_weights_ids_and_experts_take_the_ids_second(normalised):
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=9,
            hidden_size=16,
            moe_intermediate_size=8,
            num_hidden_layers=3,
            num_attention_heads=2,
            head_dim=8,
            num_key_value_heads=1,
            num_experts=6,
            num_experts_per_tok=3,
            mlp_only_layers=[1],
            norm_topk_prob=normalised,
        )
    )
    layers = moe_layers(model)
    assert [layer.layer_id for layer in layers] == [0, 2]
    seen = {}
    for layer in layers:
        layer.router.register_forward_hook(lambda _m, _i, out, k=layer.layer_id: seen.__setitem__(("router", k), out))
        layer.experts.register_forward_pre_hook(lambda _m, args, k=layer.layer_id: seen.__setitem__(("experts", k), args))
        assert (layer.router.top_k, layer.router.num_experts) == (3, 6)
    model(input_ids=torch.tensor([[1, 2, 3, 4]]))
    for layer in layers:
        logits_NE, weights_Nk, ids_Nk = seen["router", layer.layer_id]
        assert (logits_NE.shape, weights_Nk.shape, ids_Nk.shape) == ((4, 6), (4, 3), (4, 3))
        torch.testing.assert_close(layer.weigh(layer.router, logits_NE, ids_Nk), weights_Nk)
        hidden_ND, consumed_Nk, used_Nk = seen["experts", layer.layer_id]
        assert hidden_ND.shape == (4, 16)
        assert torch.equal(consumed_Nk, ids_Nk) and torch.equal(used_Nk, weights_Nk)


def test_automodel_says_in_one_line_why_it_cannot_be_used():
    available, reason = automodel_available()
    assert available != bool(reason) and "\n" not in reason


def test_automodel_builds_the_tiny_model(tmp_path):
    available, reason = automodel_available()
    if not available:
        pytest.skip(reason)
    shape = dict(vocab_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2))
    model.save_pretrained(tmp_path)
    built = automodel_causal_lm(str(tmp_path))
    assert sum(p.numel() for p in built.parameters()) == sum(p.numel() for p in model.parameters())
