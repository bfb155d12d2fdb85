"""What a rollout leaves behind: segments of token-aligned arrays, rollouts of segments, groups of rollouts.

Every array of a segment has one entry per token of the sequence, prompt and feedback included; entries off the loss mask
hold 0 (log-probs) or -1 (versions). `check_segments` is the invariant checker that tests and production share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class InvariantError(ValueError):
    """A record that breaks token identity, version semantics or routing alignment."""


@dataclass
class Segment:
    """One contiguous token sequence seen by the policy (T tokens).

    token_ids       int32 (T,)         exactly the ids the sampler consumed and produced
    loss_mask       bool (T,)          True where the policy sampled the token
    logprobs        float32 (T,)       behaviour log-prob of each sampled token, after temperature; 0 elsewhere
    versions        int32 (T,)         policy version that sampled the token; -1 elsewhere
    temperatures    float32 (T,)       temperature that sampled the token, 1 elsewhere; None: 1 everywhere
    routed_experts  int16 (T, L, k)    sampler's expert ids in MoE layer order, -1 where it reported none; None for dense models
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    routed_experts: np.ndarray | None = None
    temperatures: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def sampled(self) -> int:
        """Number of sampled (trainable) tokens."""
        return int(self.loss_mask.sum())


@dataclass
class Rollout:
    """One episode. `reward` NaN means that the environment gave none; `error` marks a failed episode; `label`: what the
    environment judged by, None where it is the data's."""

    rollout_id: str
    prompt_id: str
    segments: list[Segment]
    reward: float = float("nan")
    score: float = float("nan")
    turns: int = 0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    texts: list[str] = field(default_factory=list)
    label: str | None = None

    @property
    def sampled(self) -> int:
        return sum(s.sampled for s in self.segments)


def check_segments(segments: Sequence[Segment], *, vocab_size: int | None = None, newest_version: int | None = None) -> None:
    """Raise InvariantError with a broken invariant of any of them; silent when all are sound. One pass over all tokens."""
    segments = [s for s in segments if _check_shapes(s)]
    if not segments:
        return
    lengths = [len(s) for s in segments]
    ids, mask, logprobs, versions = (
        np.concatenate([getattr(s, name) for s in segments]) for name in ("token_ids", "loss_mask", "logprobs", "versions")
    )
    if mask[np.cumsum([0, *lengths[:-1]])].any():
        raise InvariantError("the first token cannot be a sampled one: it has no context")
    if ids.min() < 0 or (vocab_size is not None and ids.max() >= vocab_size):
        raise InvariantError("a token id lies outside the vocabulary")
    sampled, others = logprobs[mask], ~mask
    if not np.isfinite(sampled).all():
        raise InvariantError("a sampled token has no finite behaviour log-prob")
    if (sampled > 1e-3).any() or (sampled <= -9999).any():
        raise InvariantError("a behaviour log-prob is above 0 or the sampler's 'missing' value")
    if logprobs[others].any():
        raise InvariantError("a token that was not sampled carries a log-prob")
    if (versions[mask] < 0).any() or (versions[others] != -1).any():
        raise InvariantError("versions must be set on sampled tokens and -1 elsewhere")
    if newest_version is not None and versions.max() > newest_version:
        raise InvariantError(f"a token claims version {versions.max()}, the newest is {newest_version}")
    owners = np.repeat(np.arange(len(segments)), lengths)[mask]
    if ((np.diff(versions[mask]) < 0) & (np.diff(owners) == 0)).any():
        raise InvariantError("versions go backwards inside a segment")


def _check_shapes(segment: Segment) -> bool:
    """Raise InvariantError if an array does not fit the tokens; returns whether there are any."""
    length = len(segment)
    for name in ("loss_mask", "logprobs", "versions"):
        array = getattr(segment, name)
        if array.shape != (length,):
            raise InvariantError(f"{name} has shape {array.shape}, the segment has {length} tokens")
    if segment.loss_mask.dtype != bool:
        raise InvariantError(f"loss_mask must be bool, is {segment.loss_mask.dtype}")
    temperatures = segment.temperatures
    if temperatures is not None and (temperatures.shape != (length,) or (temperatures < 0).any()):
        raise InvariantError("temperatures must be one number of at least 0 per token")
    routing = segment.routed_experts
    if routing is not None and (routing.ndim != 3 or routing.shape[0] != length):
        raise InvariantError(f"routed_experts has shape {routing.shape}, expected ({length}, layers, top_k)")
    return length > 0


def check_rollout(rollout: Rollout, **kwargs: Any) -> None:
    """Check every segment; a rollout that did not fail must have sampled something."""
    check_segments(rollout.segments, **kwargs)
    if rollout.error is None and rollout.sampled == 0:
        raise InvariantError("the rollout has no sampled token")
