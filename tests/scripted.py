"""A scripted engine for tests and benches: the calls of VllmEngine with scripted lengths, versions, routing and faults.

Sequences are a function of (request, position) alone, so a turn that goes on elsewhere continues the same text.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from engine.rollout.mailbox import MailboxHost
from engine.rollout.router import Router
from engine.rollout.transport import EngineStats, GenerateRequest, GenerateResult

EOS = 0
VOCAB = 32
T = TypeVar("T")


class _VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the clock to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everything waits; a wait that nothing would end raises."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def base_id(request: GenerateRequest) -> str:
    """The turn behind a request, whichever leg of it this is."""
    return request.request_id.split("+")[0]


@dataclass
class Script:
    """What all engines of a test say: `length(turn id)` sampled tokens (the last one EOS), then the turn is over."""

    length: Callable[[str], int] = lambda turn: 8
    ends: dict[str, int] = field(default_factory=dict)

    def end(self, request: GenerateRequest) -> int:
        """Position after the turn's EOS; fixed by the first leg."""
        turn = base_id(request)
        if turn not in self.ends:
            self.ends[turn] = len(request.token_ids) + self.length(turn)
        return self.ends[turn]

    def token(self, request: GenerateRequest, position: int) -> int:
        return EOS if position == self.end(request) - 1 else 1 + position % (VOCAB - 1)


@dataclass
class _Running:
    request: GenerateRequest
    done: asyncio.Future[GenerateResult]
    limit: int
    tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class ScriptedEngine(MailboxHost):
    """step_s(running) is the time of one decoding step; each step gives `stride` tokens to every running sequence.

    routing   (layers, top_k) of a MoE, None for a dense model; row p of version v holds (p + v + layer + slot) % 8
    fault     called once per request: None, "abort", "error", "nan", "hang" or "crash"
    logprob   log-prob of every token that a version samples
    """

    def __init__(
        self,
        script: Script | None = None,
        step_s: Callable[[int], float] = lambda running: 0.01,
        max_num_seqs: int = 1_000_000,
        routing: tuple[int, int] | None = None,
        fault: Callable[[GenerateRequest], str | None] = lambda request: None,
        stride: int = 1,
        logprob: Callable[[int], float] = lambda version: -(version + 1) / 64,
    ) -> None:
        self.script, self.step_s, self.max_num_seqs = script or Script(), step_s, max_num_seqs
        self.routing, self.fault, self.stride, self.logprob = routing, fault, stride, logprob
        self.version = 0
        self.crashed = False
        self.requests: list[GenerateRequest] = []
        self.aborts: list[str] = []
        self.tokens, self.busy_s = 0, 0.0
        self.running_s, self.waiting_s = 0.0, 0.0
        self._running: dict[str, _Running] = {}
        self._waiting: list[_Running] = []
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._decoding: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        if self.crashed:
            raise ConnectionError("the engine is gone")
        self.requests.append(request)
        fault = self.fault(request)
        if fault == "error":
            raise ValueError("scripted error")
        if fault == "crash":
            self.crash()
        running = _Running(request, asyncio.get_running_loop().create_future(), self._limit(request))
        if fault == "abort":
            return self._result(running, "abort")
        if fault != "hang" and not self.crashed:
            self._waiting.append(running)
            self._start_decoding()
        elif self.crashed:
            raise ConnectionError("the engine is gone")
        try:
            result = await running.done
        finally:
            self._forget(running)
        return self._with_nan(result) if fault == "nan" else result

    def _limit(self, request: GenerateRequest) -> int:
        left = self.script.end(request) - len(request.token_ids)
        return left if request.sampling.max_tokens is None else min(left, request.sampling.max_tokens)

    def _start_decoding(self) -> None:
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.ensure_future(self._decode())

    async def _decode(self) -> None:
        """Decoding steps while anything runs; a pause holds between two steps."""
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self.max_num_seqs:
                running = self._waiting.pop(0)
                self._running[running.request.request_id] = running
            seconds = self.step_s(len(self._running)) * self.stride
            await asyncio.sleep(seconds)
            await self._unpaused.wait()
            self.busy_s += seconds
            self.running_s += seconds * len(self._running)
            self.waiting_s += seconds * len(self._waiting)
            for running in list(self._running.values()):
                self._step(running)

    def _step(self, running: _Running) -> None:
        start = len(running.request.token_ids) + len(running.tokens)
        count = min(self.stride, running.limit - len(running.tokens))
        running.tokens += [self.script.token(running.request, p) for p in range(start, start + count)]
        running.versions += [self.version] * count
        self.tokens += count
        if len(running.tokens) >= running.limit:
            stopped = bool(running.tokens) and running.tokens[-1] == EOS
            self._end(running, "stop" if stopped else "length")

    def _end(self, running: _Running, reason: str) -> None:
        self._forget(running)
        if not running.done.done():
            running.done.set_result(self._result(running, reason))

    def _forget(self, running: _Running) -> None:
        self._running.pop(running.request.request_id, None)
        if running in self._waiting:
            self._waiting.remove(running)

    def _result(self, running: _Running, reason: str) -> GenerateResult:
        logprobs = [self.logprob(version) for version in running.versions]
        return GenerateResult(running.tokens, logprobs, running.versions, reason, self._rows(running))

    def _rows(self, running: _Running) -> np.ndarray | None:
        """Rows routed_from .. prompt + sampled - 2, each of the version that sampled the token after it."""
        if self.routing is None or not running.tokens:
            return None
        prompt, start = len(running.request.token_ids), running.request.routed_from
        positions = np.arange(start, max(start, prompt + len(running.tokens) - 1))
        versions = np.array([running.versions[max(p - prompt + 1, 0)] for p in positions], dtype=int)
        layers, slots = np.indices(self.routing)
        return ((positions + versions)[:, None, None] + layers + slots).astype(np.uint8) % 8

    def _with_nan(self, result: GenerateResult) -> GenerateResult:
        result.logprobs = [float("nan")] * len(result.logprobs)
        return result

    def crash(self) -> None:
        """Lose every request; the engine answers nothing any more."""
        self.crashed = True
        for running in [*self._running.values(), *self._waiting]:
            if not running.done.done():
                running.done.set_exception(ConnectionError("the engine is gone"))
        self._running.clear()
        self._waiting.clear()

    async def abort(self, request_ids: list[str]) -> None:
        self.aborts += request_ids
        for running in [*self._running.values(), *self._waiting]:
            if running.request.request_id in request_ids:
                self._end(running, "abort")

    async def pause(self) -> int:
        self._unpaused.clear()
        return len(self._running)

    async def resume(self) -> None:
        self._unpaused.set()

    async def update_weights(self, manifest: Any, version: int) -> None:
        self.version = version

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        return [np.full(len(s) - 1, self.logprob(self.version), dtype=np.float32) for s in sequences]

    async def stats(self) -> EngineStats:
        return EngineStats(self.running_s, self.waiting_s, None, 0, self.version, self.tokens, self.busy_s)


class CharTokenizer:
    """One id per character (1 + index in ALPHABET), EOS 0; a template of plain markers."""

    ALPHABET = "0123456789+-=? abcdefghijklmnop"
    all_special_ids = (EOS,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1 + self.ALPHABET.index(c) for c in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join("" if i == EOS else self.ALPHABET[i - 1] for i in ids)

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        return "".join(f"?{m['content']}" for m in messages) + ("=" if add_generation_prompt else "")


def update(engines: list[ScriptedEngine], version: int) -> Coroutine[Any, Any, None]:
    """A weight publication over all engines, as the controller does it."""

    async def publish() -> None:
        await asyncio.gather(*(e.pause() for e in engines))
        await asyncio.gather(*(e.update_weights(None, version) for e in engines))
        await asyncio.gather(*(e.resume() for e in engines))

    return publish()


class WatchedRouter(Router):
    async def look(self) -> list[tuple[bool, int]]:
        """Of every engine: whether it is open, and its requests in flight."""
        return [(slot.open, len(slot.requests)) for slot in self.slots]
