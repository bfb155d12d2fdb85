"""What travels between agent runners, router, engines and controller. Light enough to import anywhere (numpy only)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled. `max_tokens` None leaves the rest of the context; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass
class GenerateRequest:
    """One turn of one episode. `routed_from`: routing rows before this position are already known to the caller."""

    request_id: str
    episode_id: str
    token_ids: list[int]
    sampling: Sampling
    routed_from: int = 0


@dataclass
class GenerateResult:
    """Sampled tokens with the log-prob and the policy version that sampled each.

    routed_experts  int16 (rows, L, k) for positions routed_from .. prompt + sampled - 2, or None for dense models
    finish_reason   stop | length | abort
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    routed_experts: np.ndarray | None = None
    engine: int = -1


@dataclass
class EngineStats:
    """What one engine did since its start, and the version it serves.

    running_s, waiting_s  requests that ran or waited, times the seconds they did
    kv_s         share of the KV cache in use, times seconds; None: unknown
    busy_s       seconds with a request while allowed to work
    """

    running_s: float
    waiting_s: float
    kv_s: float | None
    preemptions: int
    version: int
    tokens: int
    busy_s: float


ErrorTypes = tuple[type[BaseException], ...]


class EngineDead(ConnectionError):
    """The engine's core has ended or does not answer; its requests are lost, the engine will not come back."""


@dataclass
class Prompt:
    """One prompt of the data; `prompt_id` is stable across epochs apart from its epoch suffix and runs once per epoch."""

    prompt_id: str
    prompt: Any
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class GroupSpec:
    """An order for one group: the prompt, how many rollouts, how to sample."""

    group_id: str
    prompt: Prompt
    n_samples: int
    sampling: Sampling
    admitted_version: int = 0


@dataclass
class SegmentSummary:
    """The light part of a segment: its length and how many sampled tokens came from each version."""

    length: int
    sampled: int
    version_tokens: dict[int, int]


@dataclass
class RolloutSummary:
    """The light part of a rollout, enough for rewards, advantages, staleness and batching."""

    rollout_id: str
    reward: float
    score: float
    turns: int
    truncated: bool
    segments: list[SegmentSummary]
    info: dict[str, float] = field(default_factory=dict)

    @property
    def sampled(self) -> int:
        return sum(s.sampled for s in self.segments)


@dataclass
class FinishedGroup:
    """A group as the controller sees it: light summaries, and a reference to the heavy records (list[Rollout])."""

    group_id: str
    prompt: Prompt
    rollouts: list[RolloutSummary]
    payload: Any
    admitted_version: int = 0
    failed: int = 0
    retried: int = 0
    errors: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
