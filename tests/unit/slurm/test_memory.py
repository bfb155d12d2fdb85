"""The memory table against public model configurations and numbers worked by hand.

Sources of the sizes in architecture.PUBLIC: Qwen3-4B and Qwen3-30B-A3B as in NVIDIA-NeMo/Megatron-Bridge at 07d0d14,
src/megatron/bridge/models/qwen/qwen_provider.py (Qwen3ModelProvider4B, Qwen3MoEModelProvider30B_A3B, each of which names the
hub page it follows); DeepSeek-V3 as in the defaults of transformers' DeepseekV3Config, which a test reads.
"""

from __future__ import annotations

import json

import pytest

from engine.flags import resolve
from molt_tui.slurm.architecture import PUBLIC, UnknownModel, find, from_config
from molt_tui.slurm.memory import GIB, estimate, gpu_memory, remedies


def config(**flags):
    tree, wrong = resolve({}, {name.replace("__", "."): [str(value)] for name, value in flags.items()})
    assert not wrong
    return tree


# Total and active parameters as the models' publishers give them (DeepSeek-V3 without its multi-token-prediction module;
# its count holds the router's 58 x 256 correction biases).
@pytest.mark.parametrize(
    ("model", "total", "experts", "active"),
    [
        ("Qwen/Qwen3-4B", 4_022_468_096, 0, 4_022_468_096),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624, 48 * 128 * 3 * 2048 * 768, 3_353_032_704),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200, 58 * 256 * 3 * 7168 * 2048, 37_552_297_472),
    ],
)
def test_parameters_of_public_models(model, total, experts, active):
    found = from_config(PUBLIC[model])
    assert (found.total, found.experts, found.active) == (total, experts, active)


def test_deepseek_v3_is_what_transformers_says():
    from transformers import DeepseekV3Config

    theirs, ours = DeepseekV3Config().to_dict(), PUBLIC["deepseek-ai/DeepSeek-V3"]
    compared = {name for name in ours if name in theirs}
    assert {name: ours[name] for name in compared} == {name: theirs[name] for name in compared}
    # How experts are placed and chosen is in the hub's config.json and in the model's code, not in these defaults.
    assert ours.keys() - compared <= {"moe_layer_freq", "topk_method"}


def test_qwen3_is_what_megatron_bridge_says():
    """Its providers, by their own field names."""
    for model, size in {
        "Qwen/Qwen3-4B": {"num_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "num_query_groups": 8,
                          "kv_channels": 128, "ffn_hidden_size": 9728, "share_embeddings_and_output_weights": True},
        "Qwen/Qwen3-30B-A3B": {"num_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_query_groups": 4,
                               "kv_channels": 128, "ffn_hidden_size": 6144, "moe_ffn_hidden_size": 768, "num_moe_experts": 128,
                               "moe_router_topk": 8, "share_embeddings_and_output_weights": False},
    }.items():  # fmt: skip
        names = {"num_layers": "num_hidden_layers", "num_query_groups": "num_key_value_heads", "kv_channels": "head_dim",
                 "ffn_hidden_size": "intermediate_size", "moe_ffn_hidden_size": "moe_intermediate_size",
                 "num_moe_experts": "num_experts", "moe_router_topk": "num_experts_per_tok",
                 "share_embeddings_and_output_weights": "tie_word_embeddings"}  # fmt: skip
        ours = PUBLIC[model]
        assert {names.get(k, k): v for k, v in size.items()} == {names.get(k, k): ours[names.get(k, k)] for k in size}
        assert ours["vocab_size"] == 151936


def test_llama_and_qwen2_shapes():
    llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
    assert from_config(llama).total == 8_030_261_248
    qwen2 = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True}  # fmt: skip
    assert from_config(qwen2).total == 494_032_768


def test_kv_cache_bytes_per_token():
    assert from_config(PUBLIC["Qwen/Qwen3-4B"]).kv_values_per_token == 36 * 2 * 8 * 128
    assert from_config(PUBLIC["deepseek-ai/DeepSeek-V3"]).kv_values_per_token == 61 * (512 + 64)


def test_a_model_directory_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLIC["Qwen/Qwen3-4B"]))
    assert find(str(tmp_path)).total == 4_022_468_096
    assert find("Qwen3-4B").total == 4_022_468_096
    with pytest.raises(UnknownModel, match="stage the model first"):
        find("nobody/nothing")
    with pytest.raises(UnknownModel, match="hidden_size"):
        from_config({})


def test_static_parts_of_qwen3_4b_on_8_ranks():
    tree = config(actor__num_gpus_per_node=8, actor__gradient_checkpoint="full")
    found = estimate(find("Qwen/Qwen3-4B"), tree, 79)
    parts = {p.part: p.gib for p in found.parts if p.where == "trainer"}
    assert parts["weights (fp32)"] == pytest.approx(4 * 4_022_468_096 / 8 / GIB)
    assert parts["Adam"] == pytest.approx(2 * parts["weights (fp32)"])
    # 36 layer inputs of 16192 tokens in bf16 are 2.78 GiB; one layer at work holds 60928 values a token, 1.84 GiB, with its
    # gradients twice that.
    assert parts["activations"] == pytest.approx(2.78 + 2 * 1.838, rel=1e-2)
    assert found.fits and found.host_gib == 0
    # Cache: 0.85 * 79 - 7.49 (weights) - 3 = 56.66 GiB of 147456 bytes a token.
    assert found.kv_tokens == pytest.approx(56.66 * GIB / 147456, rel=1e-3)


def test_offload_moves_adam_to_the_host():
    tree = config(actor__num_gpus_per_node=8, fsdp__offload="optimizer")
    found = estimate(find("Qwen/Qwen3-4B"), tree, 79)
    assert found.host_gib == pytest.approx(8 * 4_022_468_096 / 8 / GIB)


def test_split_matrices_make_layers_smaller_but_neither_embedding_nor_logits():
    model, found = find("Qwen/Qwen3-4B"), {}
    for size in (1, 8):
        tree = config(actor__num_gpus_per_node=8, actor__gradient_checkpoint="full", fsdp__tp_size=size)
        found[size] = {p.part: p.gib for p in estimate(model, tree, 79).parts if p.where == "trainer"}
    same = [part for part in found[1] if found[1][part] == found[8][part]]
    assert same == ["weights (fp32)", "gradients (fp32)", "Adam", "gathered layers", "logits of a chunk", "runtime"]
    # The embedding (151936 x 2560 in bf16, and its gradient) is larger than three layers. A layer at work keeps 6 x 2560 values
    # of a token whole, and an eighth of 4 x 4096 + 3 x 9728.
    assert found[8]["gathered layers"] == pytest.approx(2 * 2 * 151936 * 2560 / GIB)
    kept = found[1]["activations"] - found[8]["activations"]
    assert kept == pytest.approx(2 * 2 * 16192 * (4 * 4096 + 3 * 9728) * 7 / 8 / GIB)


def test_deepseek_needs_many_ranks_and_expert_parallelism():
    model = find("deepseek-ai/DeepSeek-V3")
    small = config(actor__num_gpus_per_node=8, actor__gradient_checkpoint="full")
    assert not estimate(model, small, 140).fits
    large = config(actor__num_gpus_per_node=8, actor__num_nodes=32, actor__gradient_checkpoint="full", fsdp__ep_size=256,
                   fsdp__offload="optimizer", vllm__tensor_parallel_size=16)  # fmt: skip
    found = estimate(model, large, 140)
    gathered = next(p.gib for p in found.parts if p.part == "gathered layers")
    assert gathered < 5 and found.trainer_fits and found.sampler_fits
    without = estimate(model, config(actor__num_gpus_per_node=8, actor__num_nodes=32), 140)
    assert next(p.gib for p in without.parts if p.part == "gathered layers") > 60


def test_remedies_are_enough():
    model = find("Qwen/Qwen3-30B-A3B")
    tree = config(actor__num_gpus_per_node=8)
    assert not estimate(model, tree, 79).fits
    found = remedies(model, tree, 79)
    assert "--actor.gradient_checkpoint full" in " ".join(found)
    assert remedies(find("Qwen/Qwen3-4B"), config(actor__num_gpus_per_node=8, actor__gradient_checkpoint="full"), 79) == []


@pytest.mark.parametrize(
    ("name", "gib"), [("nvidia_h100_80gb", 79.0), ("H200", 140.0), ("gh200", 94.0), (None, 79.0), ("odd", 79.0)]
)
def test_memory_of_gpu_types(name, gib):
    assert gpu_memory(name) == gib


def test_one_rank_keeps_the_whole_model_as_it_computes_with_it():
    model = find("Qwen/Qwen3-4B")

    def gathered(**changes):
        parts = estimate(model, config(actor__num_gpus_per_node=1, **changes), 140).parts
        return next(p.gib for p in parts if p.part == "gathered layers")

    assert gathered() == pytest.approx(2 * model.total / 2**30)
    assert gathered(fsdp__offload="full") < gathered() / 2
