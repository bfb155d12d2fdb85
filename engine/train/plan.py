"""How the trainer ranks are started, what the controller orders from them and what they report. Numpy only."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.config import Config


@dataclass
class TrainerSpec:
    """What one trainer rank is started with.

    model_path  directory of the model, its tokenizer beside it
    host, port  rendezvous of the ranks' process group; port 0 with a single rank: any free port
    total_steps length of the learning-rate schedule in batches; None: unknown
    reference_path  directory of the frozen reference model; None: there is none
    cores       CPU cores this rank is pinned to; None: not pinned
    """

    config: Config
    model_path: str
    rank: int = 0
    world: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    device: str = "cpu"
    total_steps: int | None = None
    cores: list[int] | None = None
    reference_path: str | None = None


@dataclass
class SampleRef:
    """One segment to train: where its record lies and the advantage of its tokens.

    payload     object reference to the group's list[Rollout]
    advantage   a number for all sampled tokens, or one float32 per sampled token in order
    values, returns  one float32 per sampled token where there is a critic: its value before the batch, and its target
    """

    payload: Any
    rollout: int
    segment: int
    length: int
    advantage: float | np.ndarray = 0.0
    trace: bool = False
    values: np.ndarray | None = None
    returns: np.ndarray | None = None


@dataclass
class OptimizerStep:
    """The samples of one optimizer step, already spread: micro_batches[rank][k] lists sample indices (may be empty).

    tokens         trained tokens of all samples
    rows, prompts  samples and prompts with trained tokens
    prompt_tokens  by sample: trained tokens of all samples of its prompt in this step
    """

    micro_batches: list[list[list[int]]]
    tokens: int
    rows: int
    prompts: int
    prompt_tokens: dict[int, int]


@dataclass
class TrainOrder:
    """One consumed batch. Tokens sampled before version - max_staleness are masked by the ranks."""

    version: int
    max_staleness: int
    samples: list[SampleRef]
    optimizer_steps: list[OptimizerStep]
    live: dict[str, Any] = field(default_factory=dict)


@dataclass
class Measured:
    """What the models say about the sampled tokens of one sample before the batch is trained, in order: float32 (n,).

    rewards  reward of each token, such as -beta * kl
    values   the critic's value before each token
    """

    rewards: np.ndarray | None = None
    values: np.ndarray | None = None


@dataclass
class TraceTensors:
    """Per-token outcome of one traced sample: trainer log-probs (T,), kept (T,) bool, routing mismatch (T, layers) bool."""

    sample: int
    logprobs: np.ndarray
    kept: np.ndarray
    routing_mismatch: np.ndarray | None


@dataclass
class TrainReport:
    """Metrics already reduced over ranks, seconds per phase, and the traced samples of this rank."""

    metrics: dict[str, Any]
    seconds: dict[str, float]
    stepped: bool
    traces: list[TraceTensors] = field(default_factory=list)
