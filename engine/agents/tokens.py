"""Token-first bookkeeping of an episode: text becomes ids once, sampled ids are appended as they came."""

import asyncio
from typing import Any

import numpy as np

from engine.records import InvariantError, Segment
from engine.rollout.transport import GenerateResult

OFF_LOOP_CHARS = 16_384  # below this, tokenizing costs less than the hop to a thread
CACHED_PROMPTS = 256


class TextCodec:
    """Text to ids and back for one runner process; the rollouts of a group share the tokenization of their prompt."""

    def __init__(self, tokenizer: Any, apply_chat_template: bool = False) -> None:
        self.tokenizer = tokenizer
        self.apply_chat_template = apply_chat_template
        self._special = frozenset(tokenizer.all_special_ids)
        self._prompts: dict[str, list[int]] = {}

    def render(self, observation: Any) -> str:
        """The text of a first observation: through the chat template when that is on (a string is one user message).

        Raises ValueError for messages without a template, or anything that is neither string nor messages.
        """
        if not isinstance(observation, (str, list)):
            raise ValueError(f"an observation must be a string or a list of messages, got {type(observation).__name__}")
        if self.apply_chat_template:
            messages = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if isinstance(observation, list):
            raise ValueError("the prompt is a list of messages: set --data.apply_chat_template true")
        return observation

    async def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt; a template writes its own special tokens, plain text gets the tokenizer's."""
        cached = self._prompts.get(text)
        if cached is None:
            cached = await self._encode(text, add_special_tokens=not self.apply_chat_template)
            if len(self._prompts) >= CACHED_PROMPTS:
                self._prompts.clear()
            self._prompts[text] = cached
        return list(cached)

    async def encode_feedback(self, text: str) -> list[int]:
        return await self._encode(text, add_special_tokens=False)

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) > OFF_LOOP_CHARS:
            ids = await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return list(ids)

    def decode(self, ids: list[int]) -> str:
        """Text of sampled ids for the environment; special tokens at the very end are left out, others stay."""
        end = len(ids)
        while end and ids[end - 1] in self._special:
            end -= 1
        return self.tokenizer.decode(ids[:end], skip_special_tokens=False)


class SegmentBuilder:
    """Grows one segment turn by turn; what was appended never changes."""

    def __init__(self, prompt_ids: list[int]) -> None:
        self.token_ids = list(prompt_ids)
        self._mask = [False] * len(prompt_ids)
        self._logprobs = [0.0] * len(prompt_ids)
        self._versions = [-1] * len(prompt_ids)
        self._temperatures = [1.0] * len(prompt_ids)
        self._routing: list[tuple[int, np.ndarray]] = []
        self.routed_until = 0

    def append_feedback(self, ids: list[int]) -> None:
        """Append tokens the policy did not sample."""
        self._append(ids, False, [0.0] * len(ids), [-1] * len(ids), 1.0)

    def append_sampled(self, result: GenerateResult, temperature: float) -> None:
        """Append one turn. Raises InvariantError when its arrays disagree or its routing rows do not fit the positions."""
        count = len(result.token_ids)
        if len(result.logprobs) != count or len(result.versions) != count:
            raise InvariantError(f"the sampler returned {count} tokens, {len(result.logprobs)} log-probs and "
                                 f"{len(result.versions)} versions")  # fmt: skip
        self._append(result.token_ids, True, result.logprobs, result.versions, temperature)
        rows = result.routed_experts
        if rows is None:
            return
        if rows.ndim != 3 or self.routed_until + len(rows) > len(self.token_ids) - 1:
            raise InvariantError(f"routing rows {rows.shape} from position {self.routed_until} do not fit "
                                 f"{len(self.token_ids)} tokens")  # fmt: skip
        self._routing.append((self.routed_until, rows))
        # The last sampled token has not been fed yet: its row, if any, comes with the next turn.
        self.routed_until = len(self.token_ids) - 1

    def _append(self, ids: list[int], sampled: bool, logprobs: list[float], versions: list[int], temperature: float) -> None:
        self.token_ids += ids
        self._mask += [sampled] * len(ids)
        self._logprobs += logprobs
        self._versions += versions
        self._temperatures += [temperature] * len(ids)

    def build(self) -> Segment:
        return Segment(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            loss_mask=np.array(self._mask, dtype=bool),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            versions=np.array(self._versions, dtype=np.int32),
            routed_experts=self._build_routing(),
            temperatures=np.array(self._temperatures, dtype=np.float32),
        )

    def _build_routing(self) -> np.ndarray | None:
        """int16 (T, L, k) by absolute position, -1 where no turn reported a row; None when none ever did."""
        if not self._routing:
            return None
        routing = np.full((len(self.token_ids), *self._routing[0][1].shape[1:]), -1, dtype=np.int16)
        for start, rows in self._routing:
            routing[start : start + len(rows)] = rows
        return routing
