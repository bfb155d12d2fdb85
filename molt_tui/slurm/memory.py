"""Memory of one GPU of the trainer and one of the sampler, estimated from the model and the parallel sizes. Pure.

It is an estimate: static parts (weights, gradients, Adam) are exact for FSDP2 with fp32 masters, activations follow a
transformer layer with a fused attention, and a fixed share stands for CUDA, NCCL and fragmentation. Sizes in GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import Config
from molt_tui.slurm.architecture import Architecture

GIB = 2**30
RUNTIME_GIB = 4.0  # CUDA context, NCCL buffers, kernels' workspace, fragmentation
SAMPLER_GIB = 3.0  # vLLM's own activations and CUDA graphs
MASTER, GRADIENT, ADAM = 4, 4, 8  # bytes per parameter, fp32
GPU_GIB = {"h200": 140.0, "h100": 79.0, "a100": 79.0, "b200": 178.0, "b100": 178.0, "gb200": 184.0, "l40s": 44.0, "a40": 44.0,
           "a6000": 47.0, "v100": 31.0, "gh200": 94.0, "mi300x": 190.0}  # fmt: skip
DEFAULT_GIB = 79.0


@dataclass(frozen=True)
class Part:
    """One row of the table."""

    where: str
    part: str
    gib: float
    note: str = ""


@dataclass(frozen=True)
class Estimate:
    """Memory of one trainer GPU and one sampler GPU. `kv_tokens` is what the sampler's cache holds per engine."""

    parts: tuple[Part, ...]
    gpu_gib: float
    trainer_gib: float
    sampler_gib: float
    host_gib: float
    kv_tokens: int
    kv_sequences: float

    @property
    def trainer_fits(self) -> bool:
        return self.trainer_gib <= self.gpu_gib

    @property
    def sampler_fits(self) -> bool:
        return self.kv_sequences >= 1.0

    @property
    def fits(self) -> bool:
        return self.trainer_fits and self.sampler_fits


def gpu_memory(gpu_type: str | None) -> float:
    """GiB that a GPU type offers; 79 for an unknown one."""
    name = (gpu_type or "").lower().replace("-", "").replace("_", "").removeprefix("nvidia")
    known = [kind for kind in GPU_GIB if kind in name]
    return GPU_GIB[max(known, key=len)] if known else DEFAULT_GIB


def estimate(model: Architecture, config: Config, gpu_gib: float) -> Estimate:
    """The table for one configuration."""
    trainer = tuple(_trainer_parts(model, config))
    on_host = sum(p.gib for p in trainer if p.where == "host")
    trainer_gib = sum(p.gib for p in trainer if p.where == "trainer")
    sampler, kv_tokens = _sampler_parts(model, config, gpu_gib)
    kv_sequences = kv_tokens / config.data.max_len
    return Estimate((*trainer, *sampler), gpu_gib, trainer_gib, sum(p.gib for p in sampler), on_host, kv_tokens, kv_sequences)


def _trainer_parts(model: Architecture, config: Config) -> Iterator[Part]:
    fsdp, ranks = config.fsdp, config.trainer_ranks
    share = model.total / ranks / GIB
    weights_at = "host" if fsdp.offload == "full" else "trainer"
    adam_at = "trainer" if fsdp.offload == "none" else "host"
    yield Part(weights_at, "weights (fp32)", MASTER * share, f"{model.total / 1e9:.1f} B parameters over {ranks} ranks")
    yield Part(weights_at, "gradients (fp32)", GRADIENT * share)
    yield Part(adam_at, "Adam", ADAM * share)
    compute = 2 if fsdp.param_dtype == "bf16" else 4
    experts = model.layer_experts / fsdp.ep_size
    # The layer at work and the one being fetched, and the gradients of one; embedding and head are gathered as a whole.
    gathered = compute * max(3 * (model.layer_dense / fsdp.tp_size + experts), 2 * model.embedding) / GIB
    note = "one at work, one prefetched, one's gradients"
    if ranks == 1 and fsdp.offload != "full":
        gathered, note = compute * model.total / GIB, "all of them: one rank casts them once"
    yield Part("trainer", "gathered layers", gathered, note)
    yield Part("trainer", "activations", _activations(model, config) / GIB,
               f"{config.train.max_tokens_per_gpu} tokens, checkpointing {config.actor.gradient_checkpoint}")  # fmt: skip
    logits = 2 * 4 * min(config.train.logprob_chunk_tokens, config.train.max_tokens_per_gpu) * model.vocab / GIB
    yield Part("trainer", "logits of a chunk", logits, f"{config.train.logprob_chunk_tokens} rows, fp32 and their gradient")
    yield Part("trainer", "runtime", RUNTIME_GIB)


def _activations(model: Architecture, config: Config) -> float:
    """Bytes. A layer keeps its input twice (norms), queries, keys, values and the output, and three products of its MLP."""
    tokens = config.train.max_tokens_per_gpu
    width = 6 * model.hidden + (4 * model.attention_width + 3 * model.mlp_width_per_token) / config.fsdp.tp_size
    layer = 2 * tokens * width
    if config.actor.gradient_checkpoint == "full":
        return model.layers * 2 * tokens * model.hidden + 2 * layer
    return model.layers * layer


def _sampler_parts(model: Architecture, config: Config, gpu_gib: float) -> tuple[tuple[Part, ...], int]:
    """Rows of one sampler GPU, and how many tokens the whole engine's cache holds."""
    tensor_parallel = config.vllm.tensor_parallel_size
    size = 4 if config.vllm.dtype == "float32" else 2
    weights = size * model.total / tensor_parallel / GIB
    cache = config.vllm.kv_cache_gb or config.vllm.gpu_memory_utilization * gpu_gib - weights - SAMPLER_GIB
    split = 1 if model.latent_kv else min(tensor_parallel, model.kv_heads)
    per_token = size * model.kv_values_per_token / split
    tokens = max(0, int(cache * GIB / per_token))
    room = f"{tokens} tokens, {tokens / config.data.max_len:.1f} sequences of {config.data.max_len}"
    parts = (
        Part("sampler", "weights", weights, f"{config.vllm.dtype}, tensor parallel {tensor_parallel}"),
        Part("sampler", "activations and graphs", SAMPLER_GIB),
        Part("sampler", "KV cache", max(0.0, cache), room),
    )
    return parts, tokens


def remedies(model: Architecture, config: Config, gpu_gib: float) -> list[str]:
    """Flags that would make it fit, each enough by itself or, in the last line, together."""
    if estimate(model, config, gpu_gib).fits:
        return []
    found, combined = [], config
    for flag, changed in _changes(config):
        if estimate(model, changed, gpu_gib).fits:
            found.append(flag)
    if found:
        return found
    together = []
    for _ in range(12):
        if estimate(model, combined, gpu_gib).fits:
            return [" ".join(together)]
        best = min(_changes(combined), key=lambda c: _lack(model, c[1], gpu_gib), default=None)
        if best is None or _lack(model, best[1], gpu_gib) >= _lack(model, combined, gpu_gib):
            return []
        together = [t for t in together if t.split()[0] != best[0].split()[0]] + [best[0]]
        combined = best[1]
    return []


def _lack(model: Architecture, config: Config, gpu_gib: float) -> float:
    """GiB missing on both sides together; 0 when it fits."""
    found = estimate(model, config, gpu_gib)
    one_sequence = 2 * model.kv_values_per_token * config.data.max_len / GIB
    sampler = found.sampler_gib + (one_sequence if not found.sampler_fits else 0) - config.vllm.gpu_memory_utilization * gpu_gib
    return max(0.0, found.trainer_gib - gpu_gib) + (max(0.1, sampler) if not found.sampler_fits else 0.0)


def _changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Single steps towards less memory on a GPU."""

    def with_(section: str, **values: object) -> Config:
        return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})

    if config.actor.gradient_checkpoint == "none":
        yield "--actor.gradient_checkpoint full", with_("actor", gradient_checkpoint="full")
    if config.fsdp.offload == "none":
        yield "--fsdp.offload optimizer", with_("fsdp", offload="optimizer")
    if config.train.max_tokens_per_gpu // 2 * config.fsdp.cp_size >= config.data.max_len:
        tokens = config.train.max_tokens_per_gpu // 2
        yield f"--train.max_tokens_per_gpu {tokens}", with_("train", max_tokens_per_gpu=tokens)
    if config.actor.num_nodes < 128:
        nodes = config.actor.num_nodes * 2
        yield f"--actor.num_nodes {nodes}", with_("actor", num_nodes=nodes)
    if config.vllm.tensor_parallel_size < 16:
        size = config.vllm.tensor_parallel_size * 2
        yield f"--vllm.tensor_parallel_size {size}", with_("vllm", tensor_parallel_size=size)
