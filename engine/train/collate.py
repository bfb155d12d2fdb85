"""From records to the padded tensors of a micro-batch. Numpy until the last line; no I/O apart from the injected `get`."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.compat import MoeLayer
from engine.records import InvariantError, Rollout, Segment, check_segments
from engine.train.packing import Packing, SequenceSplit
from engine.train.plan import TrainOrder
from engine.train.replay import RoutingTargets

Get = Callable[[list[Any]], list[list[Rollout]]]


@dataclass(frozen=True)
class RoutingShape:
    """What routing rows must look like: `top_k` experts for each MoE layer, in the order of their global layer ids."""

    layer_ids: list[int]
    top_k: int
    num_experts: int


def routing_shape(layers: list[MoeLayer]) -> RoutingShape:
    """What the routing rows of these MoE layers look like."""
    return RoutingShape([layer.layer_id for layer in layers], layers[0].top_k, layers[0].num_experts)


@dataclass
class MicroBatch:
    """B right-padded segments of at most T tokens, aligned to tokens: entry t belongs to token t.

    mask_BT       tokens to train: sampled and not over age; sampled_BT: those over age too
    trained_N     indices of mask_BT[:, 1:], flattened, of those of this rank
    temperatures_BT  temperature that sampled each of them
    staleness     int64 (trained tokens,): trainer version minus sampling version
    masked_tokens sampled tokens that are over age
    routing       ids at the inputs of the forward pass, columns 0 .. T-2, or this rank's packed ones; None for dense models
    """

    samples: list[int]
    lengths: list[int]
    input_ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    trained_N: torch.Tensor
    sampled_BT: torch.Tensor
    rollout_logprobs_BT: torch.Tensor
    advantages_BT: torch.Tensor
    temperatures_BT: torch.Tensor
    staleness: np.ndarray
    masked_tokens: int
    routing: RoutingTargets | None
    packing: Packing | None = None


def resolve_segments(order: TrainOrder, samples: Iterable[int], get: Get, vocab_size: int) -> dict[int, Segment]:
    """Fetch the payload of every sample once and check its invariants. Raises InvariantError."""
    samples = list(samples)
    payloads = {_key(order.samples[s].payload): order.samples[s].payload for s in samples}
    fetched = dict(zip(payloads, get(list(payloads.values())), strict=True))
    segments = {}
    for index in samples:
        ref = order.samples[index]
        segment = fetched[_key(ref.payload)][ref.rollout].segments[ref.segment]
        if len(segment) != ref.length:
            raise InvariantError(f"sample {index} has {len(segment)} tokens, its order says {ref.length}")
        segments[index] = segment
    check_segments(list(segments.values()), vocab_size=vocab_size, newest_version=order.version)
    return segments


def _key(payload: Any) -> Any:
    return payload if isinstance(payload, Hashable) else id(payload)


def collate(
    samples: list[int], segments: dict[int, Segment], order: TrainOrder, routing: RoutingShape | None, device: torch.device,
    border: str = "both", split: SequenceSplit | None = None,
) -> MicroBatch:  # fmt: skip
    """Pad the segments of one micro-batch; without samples it is one row of two padding tokens that trains nothing.

    split  who else works on the packed row; None: rows are not packed
    """
    lengths = [len(segments[s]) for s in samples]
    rows, width = max(len(samples), 1), max([*lengths, 2])
    parts = [segments[s] for s in samples]
    is_token = np.zeros((rows, width), bool)
    is_token[: len(parts)] = np.arange(width) < np.array(lengths)[:, None]

    def padded(values: list[np.ndarray], dtype: type, fill: float = 0, where: np.ndarray = is_token) -> np.ndarray:
        filled = np.full((rows, width), fill, dtype)
        filled[where] = np.concatenate([np.zeros(0, dtype), *values])
        return filled

    ids = padded([p.token_ids for p in parts], np.int64)
    sampled = padded([p.loss_mask for p in parts], bool)
    logprobs = padded([p.logprobs for p in parts], np.float32)
    advantages = padded([np.full(segments[s].sampled, order.samples[s].advantage) for s in samples], np.float32, 0, sampled)
    temperatures = padded([np.ones(len(p)) if p.temperatures is None else p.temperatures for p in parts], np.float32, 1)
    age = order.version - padded([p.versions for p in parts], np.int64)
    mask = sampled & (age <= order.max_staleness)
    targets = routing_targets(parts, rows, width, routing, device, border) if routing else None
    packing = None if split is None else Packing.of(lengths or [2], width, device, split)
    span = slice(0, mask.size) if packing is None else packing.span
    trained_N = np.flatnonzero(mask[:, 1:].ravel()[span]) + span.start
    arrays = (ids, mask, trained_N, sampled, logprobs, advantages, temperatures)
    on_device = [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]
    if (temperatures[mask] <= 0).any():
        raise InvariantError("a token that was sampled greedily cannot be trained: it has no distribution")
    if targets and packing:
        targets = RoutingTargets(packing.pack(targets.ids_NLk, -1), packing.pack(targets.counted_N))
    return MicroBatch(samples, lengths, *on_device, age[mask], int(sampled.sum() - mask.sum()), targets, packing)


def routing_targets(
    segments: list[Segment], rows: int, width: int, shape: RoutingShape, device: torch.device, border: str = "both"
) -> RoutingTargets:
    """The sampler's ids at the inputs of the forward pass: every token of a row but the last column.

    The last token of a segment is never an input whose output is used; it keeps the live choice and is not counted.
    `border` both | old | new: what is replayed of a segment that several versions sampled; the rest keeps the live choice.
    """
    ids = np.full((rows, width - 1, len(shape.layer_ids), shape.top_k), -1, np.int16)
    counted = np.zeros((rows, width - 1), bool)
    for row, segment in enumerate(segments):
        inputs = len(segment) - 1
        counted[row, :inputs] = True
        if segment.routed_experts is not None:
            check_routing(segment.routed_experts, shape)
            kept = replayed_inputs(segment, border)
            ids[row, :inputs][kept] = segment.routed_experts[:inputs][kept]
    flat = ids.reshape(-1, *ids.shape[2:])
    ids_NLk, counted_N = (torch.from_numpy(array).to(device, non_blocking=True) for array in (flat, counted.reshape(-1)))
    return RoutingTargets(ids_NLk.long(), counted_N)


def replayed_inputs(segment: Segment, border: str) -> np.ndarray:
    """Bool (T - 1,): inputs whose choice is replayed. An input belongs to the version that sampled the next token after it.

    After an update the sampler reads the early tokens again with the new weights, but reports their choice only once: what
    the late tokens saw there is unknown, so no replay is exact on both sides of a border.
    """
    sampled = segment.versions[segment.loss_mask]
    if border == "both" or not len(sampled):
        return np.ones(max(len(segment) - 1, 0), bool)
    following = np.where(segment.loss_mask, segment.versions, np.iinfo(np.int32).max)[1:]
    version = np.minimum.accumulate(following[::-1])[::-1]
    return version <= sampled.min() if border == "old" else version >= sampled.max()


def check_routing(routed: np.ndarray, shape: RoutingShape) -> None:
    """Raise InvariantError when the rows cannot be those of this model."""
    expected = (len(shape.layer_ids), shape.top_k)
    if routed.shape[1:] != expected:
        raise InvariantError(f"routing rows are {routed.shape[1:]}, the model has {expected}")
    if routed.size and routed.max() >= shape.num_experts:
        raise InvariantError(f"routing names expert {routed.max()}, the model has {shape.num_experts}")


def samples_of(order: TrainOrder, rank: int) -> list[int]:
    """Sample indices that this rank trains, in every optimizer step."""
    return [s for step in order.optimizer_steps for batch in step.micro_batches[rank] for s in batch]


def traced_rows(order: TrainOrder, batch: MicroBatch) -> list[int]:
    """Rows of the micro-batch whose sample is marked for inspection."""
    return [row for row, sample in enumerate(batch.samples) if order.samples[sample].trace]


def pad_sequences(sequences: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (B, T), and bool (B, T) true at every token after the first."""
    width = max([2, *map(len, sequences)])
    ids = np.zeros((len(sequences), width), np.int64)
    wanted = np.zeros(ids.shape, bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        wanted[row, 1 : len(sequence)] = True
    return torch.from_numpy(ids).to(device), torch.from_numpy(wanted).to(device)
