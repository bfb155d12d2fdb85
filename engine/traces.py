"""A few rollouts of every step on disk, token by token, for inspection. Compressed, with limits per step and per run."""

import asyncio
import gzip
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.batch import PreparedBatch
from engine.config import TraceConfig
from engine.protocol import TraceRollout, TraceSegment
from engine.records import Rollout, Segment
from engine.train.plan import TraceTensors, TrainReport
from engine.wire import RunDir, encode_line, write_atomic

MAX_LABEL = 2000  # characters


def token_pieces(tokenizer_file: Path) -> Callable[[list[int]], list[str]]:
    """Text of each token, through the tokenizers library (no torch). A character of several tokens stands at its last one."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def pieces(ids: list[int]) -> list[str]:
        found, held = [], []
        for token in ids:
            held.append(token)
            text = tokenizer.decode(held, skip_special_tokens=False)
            partial = text.endswith("\ufffd") and len(held) < 4  # UTF-8 has at most four bytes
            found.append("" if partial else text)
            held = held if partial else []
        return found

    return pieces


def trace_segment(segment: Segment, outcome: TraceTensors, pieces: list[str], advantage: float | np.ndarray) -> TraceSegment:
    """The inspection record of one segment; `advantage` as SampleRef has it."""
    routing, advantages = outcome.routing_mismatch, None
    if isinstance(advantage, np.ndarray):
        np.place(advantages := np.zeros(len(segment.token_ids)), segment.loss_mask, np.round(advantage.astype(float), 6))
    return TraceSegment(
        token_ids=segment.token_ids.tolist(), pieces=pieces, mask=segment.loss_mask.astype(int).tolist(),
        versions=segment.versions.tolist(), logprobs=np.round(segment.logprobs.astype(float), 6).tolist(),
        train_logprobs=np.round(outcome.logprobs.astype(float), 6).tolist(), kept=outcome.kept.astype(int).tolist(),
        advantages=None if advantages is None else advantages.tolist(),
        routing_mismatch=None if routing is None else [np.flatnonzero(row).tolist() for row in routing],
    )  # fmt: skip


@dataclass
class TraceWriter:
    run: RunDir
    run_id: str
    attempt: int
    limits: TraceConfig
    pieces: Callable[[list[int]], list[str]]
    get: Callable[[Any], list[Rollout]]
    written: int = 0

    def __post_init__(self) -> None:
        self.written = sum(p.stat().st_size for p in self.run.rollouts.glob("*.jsonl.gz"))

    async def write(self, step: int, batch: PreparedBatch, reports: list[TrainReport]) -> None:
        """Write the traced rollouts of a step; nothing when the run's limit is reached."""
        if self.written < self.limits.max_mb_per_run * 1e6 and any(r.traces for r in reports):
            await asyncio.to_thread(self._write, step, batch, reports)

    def _write(self, step: int, batch: PreparedBatch, reports: list[TrainReport]) -> None:
        by_rollout: dict[int, list[TraceTensors]] = defaultdict(list)
        for outcome in sorted((t for r in reports for t in r.traces), key=lambda t: t.sample):
            by_rollout[batch.rows[outcome.sample].rollout_index].append(outcome)
        lines: list[bytes] = []
        room = self.limits.max_mb_per_step * 1e6
        for outcomes in by_rollout.values():
            line = gzip.compress(encode_line(self._record(step, batch, outcomes).model_dump(exclude_none=True)), 6)
            room -= len(line)
            if room < 0:
                break
            lines.append(line)
        data = b"".join(lines)
        self.written += len(data)
        write_atomic(self.run.rollouts / f"{self.attempt}-{step:06d}.jsonl.gz", data)

    def _record(self, step: int, batch: PreparedBatch, outcomes: list[TraceTensors]) -> TraceRollout:
        first, order = outcomes[0].sample, batch.order
        row = batch.rows[first]
        rollout = self.get(row.group.payload)[row.rollout]
        label = row.group.prompt.label if rollout.label is None else rollout.label
        parts = [(rollout.segments[batch.rows[o.sample].segment], o, order.samples[o.sample].advantage) for o in outcomes]
        segments = [trace_segment(s, o, self.pieces(s.token_ids.tolist()), advantage) for s, o, advantage in parts]
        return TraceRollout(
            run=self.run_id, attempt=self.attempt, step=step, rollout_id=rollout.rollout_id, prompt_id=rollout.prompt_id,
            group_id=row.group.group_id, version=order.version, max_staleness=order.max_staleness,
            label=None if label is None else str(label)[:MAX_LABEL], reward=rollout.reward, score=rollout.score,
            advantage=batch.advantages[first], turns=rollout.turns, truncated=rollout.truncated,
            info=rollout.info, segments=segments,
        )  # fmt: skip
