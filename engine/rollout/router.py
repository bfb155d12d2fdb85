"""Places every turn on an engine: least tokens in flight, sticky by episode, and carries it over when an engine drops it.

Weight updates do not pass here. An engine that is paused keeps its requests; one that is drained or lost has them
continued elsewhere with prompt + sampled tokens, so each token keeps the version that sampled it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.rollout.mailbox import MailboxClient, MailboxHost
from engine.rollout.transport import ErrorTypes, GenerateRequest, GenerateResult

STICKY_SLACK = 1.5  # an episode stays while its engine carries at most this multiple of the least load ...
STICKY_FLOOR_TOKENS = 4096  # ... or not more than this above it
REMEMBERED_EPISODES = 16_384
MAX_LEGS = 32
LEG_SEED_STRIDE = 1_000_003
LENGTH_MEMORY = 0.05  # weight of a new response in the running mean of response lengths


class NoEngine(RuntimeError):
    """Every engine is lost or drained."""


@dataclass
class EngineSlot:
    """One engine as the router sees it.

    tokens    prompt tokens plus expected samples of its requests in flight
    requests  leg in flight by request id
    """

    handle: MailboxClient
    open: bool = True
    tokens: float = 0.0
    requests: dict[str, str] = field(default_factory=dict)


@dataclass
class _Partial:
    """What the finished legs of one turn returned so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routing: list[np.ndarray] = field(default_factory=list)

    def add(self, leg: GenerateResult) -> None:
        self.token_ids += leg.token_ids
        self.logprobs += leg.logprobs
        self.versions += leg.versions
        if leg.routed_experts is not None:
            self.routing.append(leg.routed_experts)

    def result(self, finish_reason: str, engine: int) -> GenerateResult:
        routing = self.routing[0] if len(self.routing) == 1 else np.concatenate(self.routing) if self.routing else None
        return GenerateResult(self.token_ids, self.logprobs, self.versions, finish_reason, routing, engine)

    def next_leg(self, request: GenerateRequest, number: int) -> GenerateRequest:
        """The rest of the turn as a request of its own: prompt and samples so far, and what is left of the budget."""
        limit = request.sampling.max_tokens
        left = None if limit is None else limit - len(self.token_ids)
        # The same seed again would draw the same noise as the first leg did.
        seed = None if request.sampling.seed is None else request.sampling.seed + LEG_SEED_STRIDE * number
        return GenerateRequest(
            request_id=f"{request.request_id}+{number}",
            episode_id=request.episode_id,
            token_ids=request.token_ids + self.token_ids,
            sampling=replace(request.sampling, max_tokens=left, seed=seed),
            routed_from=request.routed_from + sum(map(len, self.routing)),
        )


class Router(MailboxHost):
    """One per run. `lost`: exceptions that mean the engine itself is gone; any other one concerns only its request."""

    def __init__(self) -> None:
        self.slots: list[EngineSlot] = []
        self._lost: ErrorTypes = (ConnectionError,)
        self._home: OrderedDict[str, int] = OrderedDict()
        self._aborted: set[str] = set()
        self._active: set[str] = set()
        self._mean_length = 0.0

    async def start(self, engines: Sequence[MailboxClient], lost: ErrorTypes = (ConnectionError,)) -> None:
        self.slots = [EngineSlot(engine) for engine in engines]
        self._lost = lost

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one turn to its end, over as many engines as it takes.

        Returns finish_reason "abort" only after `abort` of this request. Raises NoEngine when no engine is open, and
        whatever an engine raises about the request itself.
        """
        self._active.add(request.request_id)
        partial = _Partial()
        try:
            for number in range(MAX_LEGS):
                leg = partial.next_leg(request, number) if number else request
                index = self._place(leg)
                result = await self._run_leg(index, request.request_id, leg)
                if result is not None:
                    partial.add(result)
                reason = self._finish_reason(request, partial, result)
                if reason is not None:
                    return partial.result(reason, index)
            raise NoEngine(f"the turn was dropped by an engine {MAX_LEGS} times")
        finally:
            self._active.discard(request.request_id)
            self._aborted.discard(request.request_id)

    def _finish_reason(self, request: GenerateRequest, partial: _Partial, leg: GenerateResult | None) -> str | None:
        """How the turn ended; None when it has to go on with another leg."""
        if leg is not None and leg.finish_reason != "abort":
            return leg.finish_reason
        if request.request_id in self._aborted:
            return "abort"
        limit = request.sampling.max_tokens
        return "length" if limit is not None and len(partial.token_ids) >= limit else None

    async def _run_leg(self, index: int, request_id: str, leg: GenerateRequest) -> GenerateResult | None:
        """One engine's part of a turn; None when the engine was lost with whatever it had sampled."""
        slot = self.slots[index]
        expected = len(leg.token_ids) + self._expected_samples(leg)
        slot.tokens += expected
        slot.requests[request_id] = leg.request_id
        try:
            result = await slot.handle.generate(leg)
        except self._lost:
            slot.open = False
            return None
        finally:
            slot.tokens -= expected
            slot.requests.pop(request_id, None)
        self._mean_length += LENGTH_MEMORY * (len(result.token_ids) - self._mean_length)
        return result

    def _expected_samples(self, request: GenerateRequest) -> float:
        limit = request.sampling.max_tokens
        return self._mean_length if limit is None else min(self._mean_length, limit)

    def _place(self, request: GenerateRequest) -> int:
        """The episode's engine unless it carries clearly more than the least loaded one. Raises NoEngine."""
        least = min((i for i, s in enumerate(self.slots) if s.open), key=lambda i: self.slots[i].tokens, default=-1)
        if least < 0:
            raise NoEngine(f"none of the {len(self.slots)} engines takes requests: all are lost or drained")
        lowest = self.slots[least].tokens
        home = self._home.get(request.episode_id, least)
        slot = self.slots[home]
        bound = max(lowest * STICKY_SLACK, lowest + STICKY_FLOOR_TOKENS)
        chosen = home if slot.open and slot.tokens <= bound else least
        self._home[request.episode_id] = chosen
        self._home.move_to_end(request.episode_id)
        if len(self._home) > REMEMBERED_EPISODES:
            self._home.popitem(last=False)
        return chosen

    async def abort(self, request_ids: list[str]) -> None:
        """End these turns with what they have; ids that are not in flight are ignored."""
        self._aborted |= self._active.intersection(request_ids)
        wanted = set(request_ids)
        for slot in self.slots:
            legs = [leg for request_id, leg in slot.requests.items() if request_id in wanted]
            await self._abort_legs(slot, legs)

    async def drain(self, index: int) -> None:
        """Place nothing more on this engine and continue its requests on the others."""
        self.slots[index].open = False
        await self._abort_legs(self.slots[index], list(self.slots[index].requests.values()))

    async def restore(self, index: int, engine: MailboxClient) -> None:
        """Open a slot again, with a new engine or the drained one."""
        self.slots[index].handle = engine
        self.slots[index].open = True

    async def _abort_legs(self, slot: EngineSlot, legs: list[str]) -> None:
        if not legs:
            return
        try:
            await slot.handle.abort(legs)
        except self._lost:
            slot.open = False
