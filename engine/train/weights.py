"""The trainer's weights under the names of a Hugging Face checkpoint, gathered from all ranks."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from engine.compat_automodel import hf_tensors

# Files of a model directory that hold weights or are written anew.
_NOT_COPIED = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")


def checkpoint_tensors(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of one parameter as checkpoints and vLLM spell them: fused experts become one per expert.

    transformers keeps `experts.gate_up_proj` (E, 2 I, D) and `experts.down_proj` (E, D, I); the tensors are views.
    """
    prefix, _, kind = name.rpartition(".")
    if not prefix.endswith(".experts") or kind not in ("gate_up_proj", "down_proj"):
        yield name, tensor
        return
    for expert, weight in enumerate(tensor):
        if kind == "down_proj":
            yield f"{prefix}.{expert}.down_proj.weight", weight
        else:
            gate, up = weight.chunk(2, dim=0)
            yield f"{prefix}.{expert}.gate_proj.weight", gate
            yield f"{prefix}.{expert}.up_proj.weight", up


def spelled(causal_lm: nn.Module, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The same for a parameter of any model: AutoModel's classes have a spelling of their own."""
    adapter = getattr(causal_lm, "state_dict_adapter", None)
    for own_name, own_tensor in hf_tensors(adapter, name, tensor) if adapter else [(name, tensor)]:
        yield from checkpoint_tensors(own_name, own_tensor)


def distinct_parameters(causal_lm: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers by state-dict name; tied ones once, under their first name."""
    seen: set[int] = set()
    for name, tensor in causal_lm.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def weight_shapes(causal_lm: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of everything that `gathered_weights` yields, in its order, without gathering."""
    meta = ((name, torch.empty(tensor.shape, device="meta")) for name, tensor in distinct_parameters(causal_lm))
    return [(n, tuple(t.shape)) for name, tensor in meta for n, t in spelled(causal_lm, name, tensor)]


@torch.no_grad()
def gathered_weights(causal_lm: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Full tensors in `dtype`, cast before they are gathered; never views of live parameters. All ranks must iterate."""
    for name, tensor in distinct_parameters(causal_lm):
        local = tensor.detach().to(dtype, copy=True)
        full = local.full_tensor() if hasattr(local, "full_tensor") else local
        yield from spelled(causal_lm, name, full)


def save_hf(causal_lm: nn.Module, source: str, folder: Path, dtype: torch.dtype, writer: bool) -> None:
    """Write a model directory that transformers and vLLM load; tokenizer and other files come from `source`.

    All ranks must call it, the one with `writer` writes.
    """
    weights = {name: tensor for name, tensor in gathered_weights(causal_lm, dtype) if writer}
    if not writer:
        return
    from huggingface_hub import save_torch_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    for file in Path(source).iterdir():
        if file.is_file() and not file.name.endswith(_NOT_COPIED):
            shutil.copy(file, folder / file.name)
    config = type(causal_lm.config).from_dict(causal_lm.config.to_dict())
    config.dtype = dtype
    config.architectures = [causal_lm.config.architectures[0]] if causal_lm.config.architectures else None
    config.save_pretrained(folder)
    # Copies: experts are views of one fused tensor, which the writer would refuse.
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    save_torch_state_dict(copies, folder, metadata={"format": "pt"})
