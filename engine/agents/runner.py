"""From an environment to a rollout: the loop that an agent module exports as AgentRunner."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.agents.env import Env, Result
from engine.agents.tokens import SegmentBuilder, TextCodec
from engine.records import Rollout
from engine.rollout.transport import GenerateRequest, GenerateResult, Prompt, Sampling

CLOSE_TIMEOUT_S = 30.0
OVERRIDES = tuple(f.name for f in fields(Sampling))


class DropRollout(Exception):
    """The rollout is of no use though nothing failed; `reason` is counted as rollout/dropped/<reason>."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass
class Episode:
    """What a runner needs for one rollout. `max_len` is the context limit in tokens, prompt included."""

    rollout_id: str
    prompt: Prompt
    sampling: Sampling
    max_len: int
    codec: TextCodec
    generate: Callable[[GenerateRequest], Awaitable[GenerateResult]]
    attempt: int = 0

    async def sample(self, segment: SegmentBuilder, sampling: Sampling, turn: int) -> GenerateResult:
        """Sample one turn onto the segment. Raises RuntimeError when the generation was aborted from outside."""
        room = self.max_len - len(segment.token_ids)
        budget = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = None if sampling.seed is None else sampling.seed + turn
        result = await self.generate(
            GenerateRequest(
                request_id=f"{self.rollout_id}~{self.attempt}.{turn}",
                episode_id=self.rollout_id,
                token_ids=list(segment.token_ids),
                sampling=replace(sampling, max_tokens=budget, seed=seed),
                routed_from=segment.routed_until,
            )
        )
        if result.finish_reason == "abort":
            raise RuntimeError("the generation was aborted")
        segment.append_sampled(result, sampling.temperature)
        return result


class Runner:
    """Base of every AgentRunner; one instance serves all episodes of a process, so it keeps no episode state."""

    async def execute(self, episode: Episode) -> Rollout:
        """Run one episode. Raises DropRollout for a useless rollout, anything else for a failed one."""
        raise NotImplementedError(f"{type(self).__name__} has no execute method")


class StepEnvRunner(Runner):
    """Drives an Env: prompt, action, feedback, action, ... in one growing token sequence."""

    def __init__(self, env_cls: type[Env]) -> None:
        self.env_cls = env_cls

    async def execute(self, episode: Episode) -> Rollout:
        env = self.env_cls()
        try:
            rollout = await self._run(env, episode)
        except BaseException:
            # What ended the episode is the news; an error of close() on top of it is not.
            with suppress(Exception):
                await asyncio.wait_for(env.close(), CLOSE_TIMEOUT_S)
            raise
        await asyncio.wait_for(env.close(), CLOSE_TIMEOUT_S)
        return rollout

    async def _run(self, env: Env, episode: Episode) -> Rollout:
        prompt = episode.prompt
        given = {"observation": prompt.prompt, "label": prompt.label, "metadata": prompt.metadata}
        state = await env.reset(dict(given))
        if not isinstance(state, dict) or "observation" not in state:
            raise TypeError(f"{type(env).__name__}.reset must return a state with an 'observation', got {state!r:.80}")
        text = episode.codec.render(state["observation"])
        prompt_ids = await episode.codec.encode_prompt(text)
        if not prompt_ids:
            raise DropRollout("empty_prompt", "the prompt has no tokens")
        if len(prompt_ids) >= episode.max_len:
            raise DropRollout("prompt_too_long", f"{len(prompt_ids)} prompt tokens leave no room in data.max_len "
                              f"{episode.max_len}")  # fmt: skip
        segment = SegmentBuilder(prompt_ids)
        rollout = Rollout(episode.rollout_id, prompt.prompt_id, [], reward=0.0, texts=[text])
        judged_by = state.get("label")
        rollout.label = None if judged_by is None or judged_by is prompt.label else str(judged_by)
        sampling = episode.sampling
        while True:
            sampled = await episode.sample(segment, sampling, rollout.turns)
            action = episode.codec.decode(sampled.token_ids)
            seen = {"observation_text": "".join(rollout.texts), "action_text": action, "sampling_params": sampling}
            result = await env.step(seen | {"label": state.get("label"), "metadata": state.get("metadata")})
            sampling = _take_result(rollout, result, action, episode.sampling)
            ended = result.terminated or result.truncated
            if not ended and not await _append_feedback(segment, rollout, result, episode):
                ended = rollout.truncated = True
            if ended:
                rollout.truncated |= sampled.finish_reason == "length"
                rollout.segments = [segment.build()]
                return rollout


def _take_result(rollout: Rollout, result: Result, action: str, base: Sampling) -> Sampling:
    """Enter one step's outcome into the rollout; returns the sampling of the next turn."""
    if not isinstance(result, Result):
        raise TypeError(f"Env.step must return engine.agents.Result, got {type(result).__name__}")
    reward = math.nan if result.reward is None else float(result.reward)
    rollout.turns += 1
    rollout.texts.append(action)
    rollout.reward += reward
    rollout.score = reward if result.score is None else float(result.score)
    rollout.terminated, rollout.truncated = bool(result.terminated), bool(result.truncated)
    rollout.info |= {name: float(value) for name, value in result.info.items() if _is_number(value)}
    if not result.sampling_params:
        return base
    unknown = sorted(set(result.sampling_params) - set(OVERRIDES))
    if unknown:
        raise ValueError(f"Result.sampling_params: unknown {', '.join(unknown)}; known: {', '.join(OVERRIDES)}")
    if base.temperature > 0 and not result.sampling_params.get("temperature", 1) > 0:
        raise ValueError("Result.sampling_params: a greedy turn cannot be trained, give a temperature above 0")
    return replace(base, **result.sampling_params)


def _is_number(value: Any) -> bool:
    """Python and numpy scalars; a string that looks like a number is not one."""
    return isinstance(value, (bool, int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)


async def _append_feedback(segment: SegmentBuilder, rollout: Rollout, result: Result, episode: Episode) -> bool:
    """Append the observation; False when the context leaves no room for it and one more token."""
    feedback = await episode.codec.encode_feedback(result.observation) if result.observation else []
    if len(segment.token_ids) + len(feedback) >= episode.max_len:
        return False
    segment.append_feedback(feedback)
    rollout.texts.append(result.observation)
    return True
