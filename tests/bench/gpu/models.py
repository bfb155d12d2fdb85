"""Models for the GPU bench, built in code: a small dense one that knows the form of an answer, and random MoE ones."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.train.tiny import build_tokenizer
from recipes.sort_digits.agent import warmup_examples

WARMUP_STEPS, WARMUP_BATCH, WARMUP_LR = 300, 128, 5e-4
# Large enough that the choice of experts and of tokens shows in bf16 log-probs.
HEAD_GAIN, EXPERT_GAIN = 5.0, 1.4


def dense(path: Path, sort: bool = False, hidden_size: int = 512, num_layers: int = 6, seed: int = 0) -> None:
    """A Qwen3 that answers `7351=` with the same digits, in any order or (`sort`) in the right one; a token per character."""
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 64, num_key_value_heads=hidden_size // 128, head_dim=64,
            max_position_embeddings=1024, tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARMUP_LR, betas=(0.9, 0.95), weight_decay=0.0)
    rows = [
        (
            prompt := tokenizer.encode(question),
            [*prompt, *tokenizer.encode("".join(sorted(answer)) if sort else answer), tokenizer.eos_token_id],
        )
        for question, answer in warmup_examples(seed, 20_000)
    ]
    choice = random.Random(seed)
    for step in range(WARMUP_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = WARMUP_LR * min(1.0, (step + 1) / 20)
        batch = choice.choices(rows, k=WARMUP_BATCH)
        width = max(len(ids) for _, ids in batch)
        ids_BT = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for _, ids in batch], device="cuda")
        targets_BT = torch.tensor(
            [[-100] * len(prompt) + ids[len(prompt) :] + [-100] * (width - len(ids)) for prompt, ids in batch], device="cuda"
        )
        with torch.autocast("cuda", torch.bfloat16):
            logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
        optimizer.zero_grad()
        cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=-100).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    save(model.bfloat16(), path)


def moe_config(
    hidden_size: int, num_layers: int, num_experts: int, top_k: int, expert_size: int, vocab_size: int
) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=2 * hidden_size, moe_intermediate_size=expert_size,
        num_hidden_layers=num_layers, num_experts=num_experts, num_experts_per_tok=top_k, norm_topk_prob=True,
        num_attention_heads=hidden_size // 64, num_key_value_heads=hidden_size // 256, head_dim=64, max_position_embeddings=4096,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=0, decoder_sparse_step=1,
    )  # fmt: skip


def moe_1b(path: Path, seed: int = 0) -> None:
    """0.94 B parameters, 12 layers of 32 experts, top 4; random."""
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3MoeForCausalLM(moe_config(1024, 12, 32, 4, 768, vocab_size=1024))
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_GAIN)
        for layer in model.model.layers:
            for weight in layer.mlp.experts.parameters():
                weight.mul_(EXPERT_GAIN)
    save(model, path)


def moe_10gb() -> Qwen3MoeConfig:
    """5.0 B parameters, 10 GB in bf16, 3,219 tensors; never saved: the bench loads it with random weights."""
    return moe_config(2048, 16, 64, 8, 768, vocab_size=4096)


def save(model: PreTrainedModel, path: Path) -> None:
    model.save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    print(f"{path.name}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters", file=sys.stderr)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        {"dense": dense, "teacher": partial(dense, sort=True), "moe_1b": moe_1b}[name](folder / name)
