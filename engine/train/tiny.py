"""Tiny random Qwen3 and Qwen3-MoE models, built in code: what `tiny:qwen3` and `tiny:qwen3_moe` name.

One token per character, a chat template, and on request a short supervised warm-up that teaches an answer's format.
"""

import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from engine.agents import AgentError, load_agent
from engine.config import Config, TinyConfig

Kind = Literal["qwen3", "qwen3_moe"]
Example = tuple[str, str]

PAD, UNK, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
ASCII = "\n" + "".join(map(chr, range(32, 127)))
MAX_POSITIONS = 1024
HEAD_DIM = 32  # the smallest that vLLM computes on CPU
WARMUP_BATCH = 64
# Large enough that the choice of experts shows in the log-probs.
EXPERT_GAIN = 2.0
WARMUP_EXAMPLES = 20_000
DEFAULT_SIZES = TinyConfig()
CHAT_TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['role'] }}\n{{ message['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)


def build_tiny(path: str | Path, kind: Kind, tiny: TinyConfig = DEFAULT_SIZES, seed: int = 0) -> Path:
    """Save a random model and its tokenizer at `path`; the same arguments give the same bytes. Returns the path."""
    tokenizer, hidden_size = build_tokenizer(), tiny.hidden_size
    shape: dict[str, Any] = dict(
        vocab_size=len(tokenizer), hidden_size=hidden_size, intermediate_size=2 * hidden_size,
        num_hidden_layers=tiny.num_layers, num_attention_heads=max(1, hidden_size // HEAD_DIM), head_dim=HEAD_DIM,
        num_key_value_heads=max(1, hidden_size // HEAD_DIM), max_position_embeddings=MAX_POSITIONS, initializer_range=0.02,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, architectures=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else _moe(shape, tiny)
    logging.disable_progress_bar()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return Path(path)


def _moe(shape: dict[str, Any], tiny: TinyConfig) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        **shape, moe_intermediate_size=shape["hidden_size"], num_experts=tiny.num_experts, num_experts_per_tok=tiny.top_k,
        norm_topk_prob=True,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in layer.mlp.experts.parameters():
                weight.mul_(EXPERT_GAIN)
    return model


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One id per character of ASCII, four special tokens first; encoding adds no special token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    special = [PAD, UNK, START, END]
    vocab = {token: i for i, token in enumerate([*special, *ASCII])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNK, eos_token=END, extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE, model_max_length=MAX_POSITIONS, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def warm_up(path: str | Path, examples: Sequence[Example], steps: int, lr: float, seed: int = 0) -> float:
    """Train the model saved at `path` on (prompt, answer) pairs and save it again; returns the last loss in nats per token.

    Only the answer and the closing token are learnt. AdamW on one thread, so the same arguments give the same weights.
    Raises ValueError without examples.
    """
    if not examples:
        raise ValueError("the warm-up has no examples; give some or set tiny.warmup_steps 0")
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")  # the fastest of them at this size
    rows = [_encode(tokenizer, *example) for example in examples]
    choice = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loss = torch.tensor(float("nan"))
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / 10) * (1.0 - 0.9 * step / steps)
            loss = _answer_loss(model, choice.choices(rows, k=WARMUP_BATCH), tokenizer.pad_token_id)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(path)
    return loss.item()


def _encode(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> tuple[list[int], int]:
    """Ids of a whole example and the number of them that are prompt."""
    prompt_ids, answer_ids = tokenizer.encode(prompt), tokenizer.encode(answer)
    return [*prompt_ids, *answer_ids, tokenizer.eos_token_id], len(prompt_ids)


def _answer_loss(model: PreTrainedModel, rows: list[tuple[list[int], int]], pad: int) -> torch.Tensor:
    """Mean cross-entropy over the answer tokens of right-padded rows, which causal attention needs no mask for."""
    width = max(len(ids) for ids, _ in rows)
    ids_BT = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows])
    targets_BT = torch.tensor([[-100] * n + ids[n:] + [-100] * (width - len(ids)) for ids, n in rows])
    logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
    return cross_entropy(logits_BTV.flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=-100)


def build_for_run(config: Config, path: Path, agent: Path) -> Path:
    """The tiny model that `config` names, warmed up on the agent's `warmup_examples`; built at `path` once per run.

    `agent` is the module's file. Raises AgentError when a warm-up is wanted and the module has no examples.
    """
    if path.is_dir():
        return path
    tiny, seed = config.tiny, config.train.seed
    # A build that was killed leaves a folder of its own, never half a model at `path`.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{time.time_ns()}")
    kind: Any = config.actor.model_name_or_path.removeprefix("tiny:")
    build_tiny(unfinished, kind, tiny, seed)
    if tiny.warmup_steps:
        warm_up(unfinished, _agent_examples(agent, seed), tiny.warmup_steps, tiny.warmup_lr, seed)
    try:
        unfinished.rename(path)
    except OSError:
        shutil.rmtree(unfinished)
    return path


def _agent_examples(agent: Path, seed: int) -> list[Example]:
    module = sys.modules[type(load_agent(agent)).__module__]
    if not hasattr(module, "warmup_examples"):
        raise AgentError(f"{agent.name} exports no warmup_examples(seed, n): add it, or set tiny.warmup_steps 0")
    return list(module.warmup_examples(seed, WARMUP_EXAMPLES))
