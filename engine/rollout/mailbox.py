"""Many small generate calls over a process border in few large ones.

A remote call costs about a millisecond of CPU over both sides, more than a short turn itself. So requests of one loop
iteration travel together, and results come back in one answer with everything that is ready by then.
"""

import asyncio
import pickle
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from engine.errors import one_line
from engine.rollout.background import Background
from engine.rollout.transport import GenerateRequest, GenerateResult

GATHER_S = 0.002  # results that become ready within this time share an answer
Outcome = GenerateResult | BaseException


class _Box:
    """What one client is still to get."""

    def __init__(self) -> None:
        self.ready: list[tuple[str, Outcome]] = []
        self.running = Background()
        self.filled = asyncio.Event()


class MailboxHost:
    """Gives a class with `generate(request)` the two methods that a `MailboxClient` calls."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        raise NotImplementedError

    @property
    def _boxes(self) -> dict[str, _Box]:
        return self.__dict__.setdefault("_mailboxes", defaultdict(_Box))

    async def post(self, client: str, requests: list[GenerateRequest]) -> None:
        """Start these requests; their outcomes go to `collect` of the same client."""
        box = self._boxes[client]
        for request in requests:
            box.running.start(self._fill(box, request))

    async def _fill(self, box: _Box, request: GenerateRequest) -> None:
        try:
            outcome: Outcome = await self.generate(request)
        except (Exception, asyncio.CancelledError) as error:
            outcome = _portable(error)
        box.ready.append((request.request_id, outcome))
        box.filled.set()

    async def collect(self, client: str) -> list[tuple[str, Outcome]]:
        """Outcomes of the client's requests since the last call, at least one; waits for it."""
        box = self._boxes[client]
        await box.filled.wait()
        await asyncio.sleep(GATHER_S)
        ready, box.ready = box.ready, []
        box.filled.clear()
        return ready


def _portable(error: BaseException) -> Exception:
    """The error itself where it can travel, so that its type keeps its meaning; else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(one_line(error))
    return error if isinstance(error, Exception) else RuntimeError(one_line(error))


class MailboxClient:
    """The near side: `generate` and `abort` as the host has them, a `MailboxHost` or the actor handle of one. Travels between
    processes as this handle alone."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._name = uuid.uuid4().hex
        self._outbox: list[GenerateRequest] = []
        self._waiting: dict[str, asyncio.Future[GenerateResult]] = {}
        self._tasks = Background()
        self._collecting = False

    def __reduce__(self) -> tuple[Any, ...]:
        return MailboxClient, (self._host,)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """As the host's generate, and with its errors; a lost host fails every call that waits for it."""
        done: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = done
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append(request)
        try:
            return await done
        finally:
            self._waiting.pop(request.request_id, None)

    async def abort(self, request_ids: list[str]) -> None:
        await self._host.abort(request_ids)

    def _send(self) -> None:
        requests, self._outbox = self._outbox, []
        self._tasks.start(self._post(requests))
        if not self._collecting:
            self._collecting = True
            self._tasks.start(self._collect())

    async def _post(self, requests: list[GenerateRequest]) -> None:
        try:
            await self._host.post(self._name, requests)
        except Exception as error:
            self._fail([r.request_id for r in requests], error)

    async def _collect(self) -> None:
        """Fetch outcomes while anyone waits for one."""
        try:
            while self._waiting:
                for request_id, outcome in await self._host.collect(self._name):
                    self._resolve(request_id, outcome)
        except Exception as error:
            self._fail(list(self._waiting), error)
        finally:
            self._collecting = False

    def _resolve(self, request_id: str, outcome: Outcome) -> None:
        done = self._waiting.pop(request_id, None)
        if done is None or done.done():
            return  # its caller was cancelled
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def _fail(self, request_ids: Sequence[str], error: Exception) -> None:
        for request_id in request_ids:
            self._resolve(request_id, error)
