"""Contracts of the private parts of transformers that training relies on; those of AutoModel are in train/test_automodel.py."""

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.compat import moe_layers


@pytest.mark.parametrize("normalised", [True, False])
def test_routers_give_their_ids_to_be_replaced_and_experts_take_them(normalised):
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
    assert [(layer.top_k, layer.num_experts) for layer in layers] == [(3, 6), (3, 6)]
    ids = torch.tensor([[1, 2, 3, 4]])
    untouched = model(input_ids=ids).logits
    seen = {}

    def choose(live_Nk):
        assert live_Nk.shape == (4, 3)
        return live_Nk.clone()  # the same ids, but replaced: the weights are computed anew

    for layer in layers:
        layer.replace(choose)
        layer.router.register_forward_hook(lambda _m, _i, out, k=layer.layer_id: seen.__setitem__(("router", k), out))
        layer.experts.register_forward_pre_hook(lambda _m, args, k=layer.layer_id: seen.__setitem__(("experts", k), args))
    torch.testing.assert_close(model(input_ids=ids).logits, untouched)
    for layer in layers:
        logits_NE, weights_Nk, ids_Nk = seen["router", layer.layer_id]
        assert (logits_NE.shape, weights_Nk.shape, ids_Nk.shape) == ((4, 6), (4, 3), (4, 3))
        consumed = seen["experts", layer.layer_id]
        assert torch.equal(consumed[layer.ids_argument], ids_Nk)
