"""One agent runner process: runs the episodes of a group side by side, retries, checks and summarizes them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.agents.load import load_agent
from engine.agents.runner import DropRollout, Episode
from engine.agents.tokens import TextCodec
from engine.config import Config
from engine.errors import one_line
from engine.records import InvariantError, Rollout, Segment, check_rollout
from engine.rollout.background import Background
from engine.rollout.mailbox import MailboxClient
from engine.rollout.transport import FinishedGroup, GenerateRequest, GenerateResult, GroupSpec, RolloutSummary, SegmentSummary

ROLLOUT_SEED_STRIDE = 1_009


@dataclass
class RunnerSpec:
    """What a runner process is told at its start.

    tokenizer    directory or hub name, or a tokenizer object
    vocab_size   rows of the model's embedding; sampled ids outside it break an invariant
    """

    agent_path: str
    tokenizer: Any
    config: Config
    vocab_size: int | None = None


@dataclass
class _Outcome:
    """How one of a group's rollouts ended: a record, or why there is none."""

    rollout: Rollout | None = None
    retried: int = 0
    error: str | None = None
    dropped: str | None = None


class AgentRunnerActor:
    """Plain class; the controller wraps it into an actor. `start` before anything else."""

    def __init__(self) -> None:
        self._groups: dict[str, asyncio.Future[list[_Outcome]]] = {}
        self._aborts = Background()

    async def start(self, spec: RunnerSpec, router: MailboxClient, put: Callable[[list[Rollout]], Any]) -> None:
        """Load the tokenizer and the agent module; `router` may be the router itself. Raises AgentError naming what to change.

        `put` stores a group's records and returns what stands for them (an object reference).
        """
        self._spec, self._router, self._put = spec, router, put
        tokenizer = spec.tokenizer
        if isinstance(tokenizer, str):
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self._codec = TextCodec(tokenizer, spec.config.data.apply_chat_template)
        self._agent = load_agent(spec.agent_path)

    async def run_group(self, spec: GroupSpec) -> FinishedGroup:
        """Run all rollouts of one prompt. Rollouts that fail for good are counted, never raised; one that `abort_group`
        ends counts as dropped/aborted."""
        rollouts = asyncio.gather(*(self._run_rollout(spec, index) for index in range(spec.n_samples)))
        self._groups[spec.group_id] = rollouts
        try:
            return _finish(spec, await rollouts, self._put)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return _finish(spec, [_Outcome(dropped="aborted") for _ in range(spec.n_samples)], self._put)
        finally:
            del self._groups[spec.group_id]

    async def abort_group(self, group_id: str) -> None:
        """Stop the group's episodes and their generations; an unknown group is ignored."""
        if rollouts := self._groups.get(group_id):
            rollouts.cancel()

    async def _run_rollout(self, spec: GroupSpec, index: int) -> _Outcome:
        """One rollout with its retries. What cannot turn out better the next time is not tried again."""
        outcome = _Outcome()
        for attempt in range(self._spec.config.rollout.max_retries + 1):
            outcome = await self._attempt(self._episode(spec, index, attempt))
            outcome.retried = attempt
            if outcome.rollout is not None or outcome.dropped:
                break
        return outcome

    async def _attempt(self, episode: Episode) -> _Outcome:
        timeout_s = self._spec.config.rollout.timeout_s
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                rollout = await self._agent.execute(episode)
            if rollout.sampled == 0:
                return _Outcome(dropped="empty_tokens", error="the rollout has no sampled token")
            check_rollout(rollout, vocab_size=self._spec.vocab_size)
            return _Outcome(rollout)
        except DropRollout as reason:
            return _Outcome(dropped=reason.reason, error=str(reason))
        except InvariantError as broken:
            return _Outcome(dropped="invariant", error=str(broken))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # An agent's sys.exit() would end the event loop of this process, and with it every answer.
            if limit.expired():
                return _Outcome(error=f"the episode took longer than rollout.timeout_s ({timeout_s:g} s)")
            return _Outcome(error=one_line(error))

    def _episode(self, spec: GroupSpec, index: int, attempt: int) -> Episode:
        sampling = spec.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + ROLLOUT_SEED_STRIDE * (index + spec.n_samples * attempt))
        rollout_id = f"{spec.group_id}/{index}"
        return Episode(rollout_id, spec.prompt, sampling, self._spec.config.data.max_len, self._codec, self._generate, attempt)

    async def _generate(self, request: GenerateRequest) -> GenerateResult:
        """One turn through the router; an episode that is cancelled or out of time also ends its generation."""
        try:
            return await self._router.generate(request)
        except asyncio.CancelledError:
            # Nobody waits for the answer, and a router or engine that is gone has nothing left to abort.
            self._aborts.start(self._router.abort([request.request_id]))
            raise


def _finish(spec: GroupSpec, outcomes: list[_Outcome], put: Callable[[list[Rollout]], Any]) -> FinishedGroup:
    """The group as the controller sees it; the records go where `put` keeps them."""
    rollouts = [o.rollout for o in outcomes if o.rollout is not None]
    lost = [o for o in outcomes if o.rollout is None]
    return FinishedGroup(
        group_id=spec.group_id,
        prompt=spec.prompt,
        rollouts=[summarize(r) for r in rollouts],
        payload=put(rollouts) if rollouts else None,
        admitted_version=spec.admitted_version,
        failed=sum(o.dropped is None for o in lost),
        retried=sum(o.retried for o in outcomes),
        errors=sorted({o.error for o in lost if o.error}),
        dropped=dict(Counter(o.dropped for o in lost if o.dropped)),
    )


def summarize(rollout: Rollout) -> RolloutSummary:
    """The light part of a rollout."""
    segments = [_summarize_segment(s) for s in rollout.segments]
    return RolloutSummary(rollout.rollout_id, rollout.reward, rollout.score, rollout.turns, rollout.truncated, segments,
                          dict(rollout.info))  # fmt: skip


def _summarize_segment(segment: Segment) -> SegmentSummary:
    versions, counts = np.unique(segment.versions[segment.loss_mask], return_counts=True)
    tokens = dict(zip(versions.tolist(), counts.tolist(), strict=True))
    return SegmentSummary(len(segment), segment.sampled, tokens)
