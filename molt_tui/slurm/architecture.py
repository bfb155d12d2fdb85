"""Sizes of a language model from its config.json: parameters by kind, bytes of its KV cache. Pure but for reading files.

Covers the decoder families Qwen2/3, Qwen3-MoE, Llama, Mistral and DeepSeek-V2/V3 (multi-head latent attention).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.wire import read_record


@dataclass(frozen=True)
class Architecture:
    """Parameter counts. `layer_dense` and `layer_experts` are of the largest layer: what is not, and what is, an expert."""

    name: str
    layers: int
    hidden: int
    vocab: int
    total: int
    experts: int
    active: int
    embedding: int
    layer_dense: int
    layer_experts: int
    num_experts: int
    kv_values_per_token: int
    kv_heads: int
    latent_kv: bool
    mlp_width_per_token: int
    attention_width: int

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0


class UnknownModel(ValueError):
    """The model's sizes cannot be told; the message says why."""


def from_config(settings: Mapping[str, Any], name: str = "") -> Architecture:
    """Sizes from the contents of config.json. Raises UnknownModel when it lacks a size."""
    try:
        return _measure(settings.get("text_config", settings), name)
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise UnknownModel(f"{name or 'the model'}: its config.json has no usable {error}") from error


def _measure(s: Mapping[str, Any], name: str) -> Architecture:
    hidden, layers, vocab = int(s["hidden_size"]), int(s["num_hidden_layers"]), int(s["vocab_size"])
    latent = bool(s.get("kv_lora_rank"))
    attention = _latent_attention(s) if latent else _attention(s)
    experts_each, routed = _experts(s)
    dense_mlp = 3 * hidden * int(s.get("intermediate_size") or 0)
    norms = 2 * hidden
    moe_layers = _moe_layers(s, layers) if routed else 0
    router = routed * hidden + (routed if s.get("topk_method") == "noaux_tc" else 0)
    shared = int(s.get("n_shared_experts") or 0) * experts_each
    top_k = int(s.get("num_experts_per_tok") or 0)
    embedding = vocab * hidden
    heads = embedding if s.get("tie_word_embeddings", False) else 2 * embedding
    moe_rest = attention + norms + router + shared
    dense_layer = attention + norms + dense_mlp
    rest = heads + hidden + (layers - moe_layers) * dense_layer + moe_layers * moe_rest
    experts = moe_layers * routed * experts_each
    kv_heads = int(s.get("num_key_value_heads") or s["num_attention_heads"])
    head_dim = _head_dim(s)
    width = int(s.get("moe_intermediate_size") or 0) * (top_k + int(s.get("n_shared_experts") or 0))
    return Architecture(
        name=name, layers=layers, hidden=hidden, vocab=vocab, total=rest + experts, experts=experts,
        active=rest + moe_layers * top_k * experts_each, embedding=embedding,
        layer_dense=max(moe_rest if moe_layers else 0, dense_layer if moe_layers < layers else 0),
        layer_experts=routed * experts_each if moe_layers else 0, num_experts=routed if moe_layers else 0,
        kv_values_per_token=layers * (int(s["kv_lora_rank"]) + int(s["qk_rope_head_dim"]) if latent else 2 * kv_heads * head_dim),
        kv_heads=1 if latent else kv_heads, latent_kv=latent,
        mlp_width_per_token=max(width if moe_layers else 0, int(s.get("intermediate_size") or 0) if moe_layers < layers else 0),
        attention_width=int(s["num_attention_heads"]) * head_dim,
    )  # fmt: skip


def _head_dim(s: Mapping[str, Any]) -> int:
    if s.get("kv_lora_rank"):
        return int(s["v_head_dim"])
    return int(s.get("head_dim") or s["hidden_size"] // s["num_attention_heads"])


def _attention(s: Mapping[str, Any]) -> int:
    hidden, heads = s["hidden_size"], s["num_attention_heads"]
    kv_heads, dim = s.get("num_key_value_heads") or heads, _head_dim(s)
    weights = hidden * dim * (2 * heads + 2 * kv_heads)
    kind = str(s.get("model_type", ""))
    query_key_norms = 2 * dim if kind.startswith("qwen3") else 0
    biased = s.get("attention_bias", kind == "qwen2")
    return weights + query_key_norms + (dim * (heads + 2 * kv_heads) if biased else 0)


def _latent_attention(s: Mapping[str, Any]) -> int:
    hidden, heads = s["hidden_size"], s["num_attention_heads"]
    nope, rope, value, kv_rank = s["qk_nope_head_dim"], s["qk_rope_head_dim"], s["v_head_dim"], s["kv_lora_rank"]
    query_rank = s.get("q_lora_rank")
    query = (
        hidden * query_rank + query_rank + query_rank * heads * (nope + rope) if query_rank else hidden * heads * (nope + rope)
    )
    key_value = hidden * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value)
    return query + key_value + heads * value * hidden


def _experts(s: Mapping[str, Any]) -> tuple[int, int]:
    """(parameters of one expert, routed experts of a layer)."""
    routed = int(s.get("n_routed_experts") or s.get("num_experts") or s.get("num_local_experts") or 0)
    width = s.get("moe_intermediate_size") or s.get("intermediate_size")
    return (3 * int(s["hidden_size"]) * int(width), routed) if routed else (0, 0)


def _moe_layers(s: Mapping[str, Any], layers: int) -> int:
    first_dense, every = (
        int(s.get("first_k_dense_replace") or 0),
        int(s.get("decoder_sparse_step") or s.get("moe_layer_freq") or 1),
    )
    only_dense = set(s.get("mlp_only_layers") or ())
    if "decoder_sparse_step" in s:
        return sum((i + 1) % every == 0 and i not in only_dense for i in range(layers))
    return sum(i >= first_dense and i % every == 0 for i in range(layers))


# Sizes of public models that recipes name, for login nodes that have no copy (from their published config.json).
PUBLIC: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B": {
        "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
    "deepseek-ai/DeepSeek-V3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "topk_method": "noaux_tc", "vocab_size": 129280, "tie_word_embeddings": False,
    },
}  # fmt: skip


def find(model: str) -> Architecture:
    """Sizes of a model directory, of a copy in the Hugging Face cache, or of a known public model. Raises UnknownModel."""
    for path in _config_files(model):
        try:
            return from_config(json.loads(read_record(path)), model)
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, UnknownModel):
                raise
    for name, settings in PUBLIC.items():
        if model in (name, name.rpartition("/")[2]):
            return from_config(settings, model)
    raise UnknownModel(f"no config.json of {model} is here; stage the model first, or give its directory")


def _config_files(model: str) -> list[Path]:
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    found = [Path(os.path.expanduser(model), "config.json")]
    if os.path.isdir(snapshots):
        found += sorted(snapshots.glob("*/config.json"))
    return [path for path in found if os.path.isfile(path)]
