"""Tiny random models and records for the trainer's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from engine.config import Config
from engine.records import Rollout, Segment
from engine.train.balance import plan_optimizer_steps
from engine.train.plan import SampleRef, TrainOrder

VOCAB, EXPERTS, TOP_K = 17, 8, 2


def tiny_model(moe: bool = True, layers: int = 2, tie: bool = False, seed: int = 0, **changes):
    """A random transformers Qwen3 or Qwen3-MoE; weights large enough that log-probs and routing are not flat."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape = dict(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=tie, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(seed)
    if not moe:
        return Qwen3ForCausalLM(Qwen3Config(**shape | changes)).train()
    experts = dict(moe_intermediate_size=24, num_experts=EXPERTS, num_experts_per_tok=TOP_K, norm_topk_prob=True)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape | experts | changes)).train()


def save_tiny(path: Path, **options) -> str:
    tiny_model(**options).save_pretrained(path)
    return str(path)


def config(**sections) -> Config:
    """A Config with fp32 compute, lr 1e-3, and the given sections on top."""
    base = {"fsdp": {"param_dtype": "fp32"}, "actor": {"adam": {"lr": 1e-3}}, "vllm": {"dtype": "float32"}}
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return Config.model_validate(base)


def segment(rng: np.random.Generator, length: int, prompt: int, version: int = 0, layers: int | None = 2) -> Segment:
    """A segment whose tokens after `prompt` were sampled; routing random, the last position not reported."""
    mask = np.arange(length) >= prompt
    routing = None
    if layers is not None:
        routing = np.argsort(rng.random((length, layers, EXPERTS)), -1)[..., :TOP_K].astype(np.int16)
        routing[-1] = -1
    return Segment(
        token_ids=rng.integers(0, VOCAB, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -rng.random(length) * 3, 0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        routed_experts=routing,
    )


def rollouts(count: int, seed: int = 0, layers: int | None = 2, version: int = 0) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 14, count)
    return [Rollout(f"r{i}", f"p{i}", [segment(rng, int(n), 2, version, layers)]) for i, n in enumerate(lengths)]


def order(
    records: list[Rollout], *, ranks: int = 1, budget: int = 60, per_step: int | None = None, version: int = 0,
    max_staleness: int = 0, trace: bool = False, seed: int = 1,
) -> TrainOrder:  # fmt: skip
    """An order over the first segment of every rollout, random advantages; payloads are the records themselves."""
    rng = np.random.default_rng(seed)
    segments = [r.segments[0] for r in records]
    young = [int((s.loss_mask & (s.versions >= version - max_staleness)).sum()) for s in segments]
    samples = [SampleRef(records, i, 0, len(s), float(rng.normal()), trace) for i, s in enumerate(segments)]
    steps = plan_optimizer_steps(
        [len(s) for s in segments], young, list(range(len(records))), [i // 2 for i in range(len(records))],
        rollouts_per_step=per_step or len(records),
        ranks=ranks, budget=budget,
    )  # fmt: skip
    return TrainOrder(version, max_staleness, samples, steps)
