"""The policy as the trainer sees it: token ids in, log-prob and entropy of every wanted token out.

The backbone comes from transformers on CPU and from NeMo AutoModel on CUDA; FSDP2 (`fully_shard`) shards either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from engine.compat import automodel_available, automodel_causal_lm

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelOptions:
    """How the model computes; masters are always fp32.

    param_dtype          fp32 | bf16, type of the compute; gradients are reduced in fp32
    chunk_tokens         rows of the vocabulary projection that are held at once
    gradient_checkpoint  none | full: recompute every decoder layer in backward
    """

    param_dtype: str = "fp32"
    chunk_tokens: int = 2048
    gradient_checkpoint: str = "none"


class TokenOutputs(NamedTuple):
    """logprobs_BT[b, t] = log p(token t | tokens before t) in nats, entropy_BT that of the whole distribution there;
    both float32 and 0 where not wanted."""

    logprobs_BT: torch.Tensor
    entropy_BT: torch.Tensor


class PolicyModel(nn.Module):
    """A causal LM whose vocabulary projection runs inside this module's forward, in chunks recomputed in backward.

    As the FSDP root it holds the gathered embedding and head weights during both passes.
    """

    def __init__(self, causal_lm: nn.Module, chunk_tokens: int) -> None:
        super().__init__()
        self.lm = causal_lm
        self.chunk_tokens = chunk_tokens

    def forward(
        self,
        input_ids_BT: torch.Tensor,
        wanted_BT: torch.Tensor,
        temperatures_BT: torch.Tensor | None = None,
        entropy_gradient: bool = False,
    ) -> TokenOutputs:
        """Right-padded rows of at least 2 tokens: causal attention never sees padding on the right, so there is no mask.

        wanted_BT  bool, tokens whose log-prob is needed; the projection runs for these alone. Column 0 must be False
        temperatures_BT  divide the logits of each token before log_softmax; None: 1
        """
        hidden_BTD = self.lm.base_model(input_ids=input_ids_BT[:, :-1], use_cache=False).last_hidden_state
        wanted_N = wanted_BT[:, 1:].flatten().nonzero().squeeze(1)
        hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, wanted_N)
        targets_N = input_ids_BT[:, 1:].flatten()[wanted_N]
        ones = torch.ones_like(input_ids_BT, dtype=torch.float32)
        temperatures_N = (ones if temperatures_BT is None else temperatures_BT)[:, 1:].flatten()[wanted_N]
        logprobs_N, entropy_N = self._project(hidden_ND, targets_N, temperatures_N, entropy_gradient)
        flat = torch.zeros(wanted_BT[:, 1:].numel(), dtype=torch.float32, device=input_ids_BT.device)
        rows, columns = wanted_BT[:, 1:].shape
        logprobs_BT, entropy_BT = (
            nn.functional.pad(flat.index_copy(0, wanted_N, values_N).view(rows, columns), (1, 0))
            for values_N in (logprobs_N, entropy_N)
        )
        return TokenOutputs(logprobs_BT, entropy_BT)

    def _project(
        self, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperatures_N: torch.Tensor, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = self.lm.get_output_embeddings()
        # split() of no rows still yields one chunk, so an empty micro-batch keeps its graph and its FSDP passes.
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


def load_causal_lm(path: str, device: torch.device) -> nn.Module:
    """The model at `path` with fp32 masters: transformers' class on CPU, AutoModel's on CUDA.

    Raises OSError if there is no model, RuntimeError if AutoModel is needed and cannot be used.
    """
    if device.type == "cuda":
        available, reason = automodel_available()
        if not available:
            raise RuntimeError(reason)
        return automodel_causal_lm(path).train()
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").train()


def shard_policy(causal_lm: nn.Module, mesh: DeviceMesh, options: ModelOptions) -> PolicyModel:
    """Shard every decoder layer and then the whole over the mesh (FSDP2); world size 1 takes the same path."""
    if options.gradient_checkpoint == "full":
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = PolicyModel(causal_lm, options.chunk_tokens)
    precision = MixedPrecisionPolicy(param_dtype=DTYPES[options.param_dtype], reduce_dtype=torch.float32)
    for layer in causal_lm.base_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy
