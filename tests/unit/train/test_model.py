import pytest
import torch
from helpers import VOCAB, tiny_model

from engine.train.model import ModelOptions, load_causal_lm, shard_policy

# One per token: entry t belongs to token t, whose logits stand at t - 1.
TEMPERATURES_BT = torch.linspace(0.5, 2.0, 21).view(3, 7)


def sharded(model, layout, **options):
    return shard_policy(model, layout, ModelOptions(**options))


def naive(model, ids_BT, wanted_BT, temperatures_BT):
    """Full-vocabulary log-probs and entropies by the textbook, one row at a time without padding."""
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits.float() / temperatures_BT.roll(-1, 1)[..., None]
    logp_BTV = torch.log_softmax(logits_BTV, -1)
    picked_BT = logp_BTV[:, :-1].gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    entropy_BT = -(logp_BTV.exp() * logp_BTV).sum(-1)[:, :-1]
    pad = torch.nn.functional.pad
    return pad(picked_BT, (1, 0)) * wanted_BT, pad(entropy_BT, (1, 0)) * wanted_BT


def gradients(model):
    return {n: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad) for n, p in model.named_parameters()}


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_chunked_outputs_and_gradients_equal_the_full_vocabulary(layout, chunk):
    torch.manual_seed(1)
    ids_BT = torch.randint(0, VOCAB, (3, 7))
    wanted_BT = torch.rand(3, 7) > 0.4
    wanted_BT[:, 0] = False
    weights_BT = torch.randn(3, 7)

    reference = tiny_model(moe=False)
    logprobs_BT, entropy_BT = naive(reference, ids_BT, wanted_BT, TEMPERATURES_BT)
    (weights_BT * logprobs_BT + 0.3 * entropy_BT).sum().backward()

    policy = sharded(tiny_model(moe=False), layout, chunk_tokens=chunk)
    wanted_N = wanted_BT[:, 1:].flatten().nonzero().squeeze(1)
    output = policy(ids_BT, wanted_BT, TEMPERATURES_BT, entropy_gradient=True, wanted_N=wanted_N if chunk == 5 else None)
    (weights_BT * output.logprobs_BT + 0.3 * output.entropy_BT).sum().backward()

    torch.testing.assert_close(output.logprobs_BT, logprobs_BT, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(output.entropy_BT, entropy_BT, atol=1e-6, rtol=1e-5)
    for name, gradient in gradients(policy.lm).items():
        torch.testing.assert_close(gradient, gradients(reference)[name], atol=1e-5, rtol=1e-4, msg=name)


def test_padding_and_neighbours_change_nothing(layout):
    policy = sharded(tiny_model(), layout)
    ids_BT = torch.randint(0, VOCAB, (1, 6))
    wanted_BT = torch.tensor([[False, False, True, True, True, True]])
    alone = policy(ids_BT, wanted_BT).logprobs_BT
    padded_BT = torch.randint(0, VOCAB, (3, 11))
    padded_BT[1, :6] = ids_BT[0]
    wide_BT = torch.zeros(3, 11, dtype=torch.bool)
    wide_BT[1, :6] = wanted_BT[0]
    together = policy(padded_BT, wide_BT).logprobs_BT
    torch.testing.assert_close(together[1:2, :6], alone, atol=1e-6, rtol=0)
    assert not together[wide_BT.logical_not()].any()


def test_nothing_wanted_still_gives_every_parameter_a_gradient(layout):
    policy = sharded(tiny_model(), layout)
    output = policy(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool))
    output.logprobs_BT.sum().backward()
    assert all(g is not None and not g.any() for g in gradients(policy.lm).values())


def test_bf16_compute_keeps_fp32_masters_and_gradients(layout):
    policy = sharded(tiny_model(moe=False), layout, param_dtype="bf16")
    ids_BT = torch.randint(0, VOCAB, (2, 6))
    wanted_BT = torch.ones(2, 6, dtype=torch.bool)
    wanted_BT[:, 0] = False
    logprobs_BT = policy(ids_BT, wanted_BT).logprobs_BT
    exact_BT, _ = naive(tiny_model(moe=False), ids_BT, wanted_BT, torch.ones(2, 6))
    logprobs_BT.sum().backward()
    assert logprobs_BT.dtype == torch.float32
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in policy.parameters()} == {torch.float32}
    # bf16 keeps 8 bits: visibly off, but near.
    reference_BT = policy(ids_BT, wanted_BT).logprobs_BT
    assert 1e-6 < (reference_BT - exact_BT).abs().max() < 0.5


@pytest.mark.parametrize("wanted", [{"ep_size": 2}, {"attention": "te"}])
def test_what_transformers_class_cannot_do_is_refused(layout, wanted):
    with pytest.raises(RuntimeError, match=r"use fsdp\.ep_size 1 and fsdp\.attn_implementation sdpa"):
        load_causal_lm("nowhere", layout, ModelOptions(**wanted))
