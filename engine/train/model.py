"""The policy as the trainer sees it: token ids in, log-prob and entropy of every wanted token out.

The backbone comes from transformers on CPU and from NeMo AutoModel on CUDA; FSDP2 (`fully_shard`) shards either.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

from engine.compat import moe_layers
from engine.compat_automodel import automodel_causal_lm, automodel_has_class
from engine.config import Config
from engine.train.layout import Layout, check_splits, split_matrices
from engine.train.packing import Packing, use_packed_attention
from engine.train.replay import RoutingReplay

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelOptions:
    """How the model computes; masters are always fp32.

    param_dtype          fp32 | bf16, type of the compute; gradients are reduced in fp32
    chunk_tokens         rows of the vocabulary projection that are held at once
    gradient_checkpoint  none | full: recompute every decoder layer in backward
    ep_size              ranks that share the experts; needs a class of AutoModel
    offload              full: weights live in host memory and visit the device layer by layer
    packed               segments behind each other in one row, where the caller gives their packing
    automodel            AutoModel's class where it has one (CUDA); else transformers'
    """

    param_dtype: str = "fp32"
    chunk_tokens: int = 2048
    gradient_checkpoint: str = "none"
    ep_size: int = 1
    offload: str = "none"
    attention: str = "sdpa"
    packed: bool = False
    automodel: bool = False

    @classmethod
    def of(cls, config: Config, device: str) -> Self:
        fsdp = config.fsdp
        return cls(fsdp.param_dtype, config.train.logprob_chunk_tokens, config.actor.gradient_checkpoint, fsdp.ep_size,
                   fsdp.offload, fsdp.attn_implementation, fsdp.packing_samples, automodel=device == "cuda")  # fmt: skip


class TokenOutputs(NamedTuple):
    """logprobs_BT[b, t] = log p(token t | tokens before t) in nats, entropy_BT that of the whole distribution there;
    both float32 and 0 where not wanted."""

    logprobs_BT: torch.Tensor
    entropy_BT: torch.Tensor


class PolicyModel(nn.Module):
    """A causal LM whose vocabulary projection runs inside this module's forward, in chunks recomputed in backward.

    As the FSDP root it holds the gathered embedding and head weights during both passes.
    """

    def __init__(self, causal_lm: nn.Module, chunk_tokens: int, packed: bool = False) -> None:
        super().__init__()
        self.lm = causal_lm
        self.chunk_tokens = chunk_tokens
        self.routing: RoutingReplay | None = None
        self._attention = use_packed_attention(causal_lm) if packed else None

    def forward(
        self, input_ids_BT: torch.Tensor, wanted_BT: torch.Tensor, temperatures_BT: torch.Tensor | None = None,
        entropy_gradient: bool = False, packing: Packing | None = None, wanted_N: torch.Tensor | None = None,
    ) -> TokenOutputs:  # fmt: skip
        """Right-padded rows of at least 2 tokens: causal attention never sees padding on the right, so there is no mask.

        wanted_BT  bool, tokens whose log-prob is needed; the projection runs for these alone. Column 0 must be False
        temperatures_BT  divide the logits of each token before log_softmax; None: 1
        packing  compute the backbone on these inputs alone, in one row; for a model made with `packed`
        wanted_N  the indices of wanted_BT[:, 1:], flattened, in this rank's span of the packing; where they are not known
                  the device is waited for
        """
        inputs_BT = input_ids_BT[:, :-1]
        if self._attention is not None:
            self._attention.packing = packing
        span = packing.span if packing else slice(0, inputs_BT.numel())
        if wanted_N is None:
            wanted_N = wanted_BT[:, 1:].flatten()[span].nonzero().squeeze(1) + span.start
        if packing is None:
            hidden_ND = hidden_states(backbone(self.lm), inputs_BT).flatten(0, 1).index_select(0, wanted_N)
        else:
            packed_1M = packing.pack(inputs_BT.flatten())[None]
            packed_1MD = hidden_states(backbone(self.lm), packed_1M, position_ids=packing.positions_1M)
            hidden_ND = packed_1MD[0].index_select(0, torch.searchsorted(packing.kept_N, wanted_N))
        targets_N = input_ids_BT[:, 1:].flatten()[wanted_N]
        if temperatures_BT is None:
            temperatures_N = torch.ones_like(targets_N, dtype=torch.float32)
        else:
            temperatures_N = temperatures_BT[:, 1:].flatten()[wanted_N]
        logprobs_N, entropy_N = self._project(hidden_ND, targets_N, temperatures_N, entropy_gradient)
        flat_2P = torch.zeros(2, inputs_BT.numel(), dtype=torch.float32, device=input_ids_BT.device)
        flat_2P = flat_2P.index_copy(1, wanted_N, torch.stack([logprobs_N, entropy_N]))
        if packing is not None:
            flat_2P = packing.split.joined(flat_2P)
        return TokenOutputs(*(nn.functional.pad(values_BT, (1, 0)) for values_BT in flat_2P.view(2, *inputs_BT.shape)))

    def _project(
        self, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperatures_N: torch.Tensor, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = self.lm.get_output_embeddings()
        if len(hidden_ND) <= self.chunk_tokens:  # to recompute the only chunk would not lower the peak
            return chunk_logprobs(head, hidden_ND, targets_N, temperatures_N, entropy_gradient)
        size = self.chunk_tokens
        chunks = zip(hidden_ND.split(size), targets_N.split(size), temperatures_N.split(size), strict=True)
        parts = [
            checkpoint(chunk_logprobs, head, h, t, tau, entropy_gradient, use_reentrant=False, preserve_rng_state=False)
            for h, t, tau in chunks
        ]
        logprobs, entropy = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropy)


def chunk_logprobs(
    head: nn.Module, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperatures_N: torch.Tensor, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of each row, float32 (N,), from hidden states (N, D)."""
    all_logprobs_NV = (head(hidden_ND).float() / temperatures_N[:, None]).log_softmax(-1)
    logprobs_N = all_logprobs_NV.gather(1, targets_N[:, None]).squeeze(1)
    # Last, so that the recomputation in backward stops before an entropy that needs no gradient.
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(all_logprobs_NV.exp() * all_logprobs_NV).sum(-1)
    return logprobs_N, entropy_N


def backbone(causal_lm: nn.Module) -> nn.Module:
    """The model without its head: transformers' classes name it, AutoModel's keep it as `model`."""
    return causal_lm.base_model if hasattr(causal_lm, "base_model") else causal_lm.model


def hidden_states(body: nn.Module, input_ids_BT: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    """Final hidden states (B, T, D) of a backbone."""
    output = body(input_ids=input_ids_BT, use_cache=False, **inputs)
    return output if isinstance(output, torch.Tensor) else output.last_hidden_state


def load_causal_lm(path: str, layout: Layout, options: ModelOptions) -> nn.Module:
    """The model at `path` with fp32 masters, for `shard_policy`; AutoModel's layers are sharded already. All ranks call it.

    Raises OSError if there is no model, ValueError if it cannot be split as the layout says, RuntimeError if only AutoModel
    could be right and it cannot be used.
    """
    check_splits(path, layout)
    own_class, reason = False, "NeMo AutoModel is used on CUDA alone, and without fsdp.tp_size"
    if options.automodel and layout.tp is None:
        own_class, reason = automodel_has_class(path)
    if own_class:
        grouped = options.param_dtype == "bf16" and layout.whole.device_type == "cuda"
        shard = partial(shard_layers, layout.layers, options)
        return automodel_causal_lm(path, options.ep_size, options.attention, grouped, shard).train()
    if options.ep_size > 1 or options.attention != "sdpa":
        raise RuntimeError(f"{reason}, and transformers' can neither share experts nor take Transformer Engine: use fsdp.ep_size"
                           " 1 and fsdp.attn_implementation sdpa")  # fmt: skip
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    causal_lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").train()
    if layout.tp is not None:
        split_matrices(backbone(causal_lm), layout)
    return causal_lm


def shard_layers(mesh: DeviceMesh, options: ModelOptions, causal_lm: nn.Module, experts_mesh: DeviceMesh | None = None) -> None:
    """Recompute if wanted, and shard every decoder layer over the mesh (FSDP2).

    experts_mesh  ranks that hold the same experts (expert parallelism): these shard them, the others have other experts
    """
    # Parameters that are still to be loaded come on the device: pinned, FSDP would move them while they are.
    settings = _fsdp_settings(options, pinned=not any(p.is_meta for p in causal_lm.parameters()))
    if options.gradient_checkpoint == "full" and hasattr(causal_lm, "gradient_checkpointing_enable"):
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if experts_mesh is not None:
        for layer in moe_layers(causal_lm):
            fully_shard(layer.experts, mesh=experts_mesh, shard_placement_fn=lambda p: Shard(min(p.ndim - 1, 1)), **settings)
    # AutoModel's loader takes experts that are split evenly, or along another dimension.
    own = moe_layers(causal_lm) if hasattr(causal_lm, "state_dict_adapter") else []
    uneven = {id(p) for layer in own for p in layer.experts.parameters() if p.shape[0] % mesh.size()}
    layers = backbone(causal_lm).layers
    for name, layer in list(layers.named_children()):
        if options.gradient_checkpoint == "full" and not hasattr(causal_lm, "gradient_checkpointing_enable"):
            layer = checkpoint_wrapper(layer, preserve_rng_state=False)
            layers.register_module(name, layer)
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if id(p) in uneven else None, **settings)


def _fsdp_settings(options: ModelOptions, pinned: bool = True) -> dict[str, Any]:
    # Inputs are not cast: rotary angles and temperatures stay fp32.
    dtype = DTYPES[options.param_dtype]
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    return {"mp_policy": precision, "offload_policy": CPUOffloadPolicy(pinned) if options.offload == "full" else OffloadPolicy()}


def shard_root(model: nn.Module, causal_lm: nn.Module, layout: Layout, options: ModelOptions) -> None:
    """Shard `model`, which holds `causal_lm` or its backbone: the layers if they are not yet, and then the whole."""
    if not any(isinstance(module, FSDPModule) for module in causal_lm.modules()):
        shard_layers(layout.layers, options, causal_lm)
    fully_shard(model, mesh=layout.whole, **_fsdp_settings(options))
    if options.offload == "full":
        model.to("cpu")
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(layout.whole.device_type))


def shard_policy(causal_lm: nn.Module, layout: Layout, options: ModelOptions) -> PolicyModel:
    """The causal LM as a policy, sharded over the ranks (FSDP2); world size 1 takes the same path."""
    policy = PolicyModel(causal_lm, options.chunk_tokens, options.packed)
    shard_root(policy, causal_lm, layout, options)
    return policy
