"""One weight publication: gather outside the pause, pause, transfer past the router, resume at the new version."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TRANSFER_TIMEOUT_S = 600.0


class PublishError(RuntimeError):
    """A publication that did not reach every engine; the engines stay paused, so no mixed version can sample."""


@dataclass(frozen=True)
class PublishReport:
    bytes: int
    seconds: float
    pause_seconds: float
    transfer_seconds: float
    held: int

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {"sync/bytes": self.bytes}
        if self.transfer_seconds > 0:
            found["sync/gb_s"] = self.bytes / 1e9 / self.transfer_seconds
        return found


async def _all(what: str, calls: Sequence[Any]) -> list[Any]:
    """Await every call within the time-out; the first failure is raised with what was being done."""
    try:
        return await asyncio.wait_for(asyncio.gather(*calls), TRANSFER_TIMEOUT_S)
    except TimeoutError:
        raise PublishError(f"weight update: {what} did not finish within {TRANSFER_TIMEOUT_S:.0f} s") from None
    except Exception as error:
        raise PublishError(f"weight update: {what} failed: {error}") from error


async def publish(trainers: Sequence[Any], engines: Sequence[Any], manifest: Any, version: int) -> PublishReport:
    """Bring every engine to `version`. Held requests continue on the new weights with exact version borders.

    Raises PublishError when any engine was not updated; resuming then would mix versions, so nothing resumes.
    """
    started = time.perf_counter()
    await _all("gathering the weights", [t.prepare_weights() for t in trainers])
    paused = time.perf_counter()
    held = await _all("pausing the engines", [e.pause() for e in engines])
    transfer = time.perf_counter()
    receive = [e.update_weights(manifest, version) for e in engines]
    send = [t.send_weights() for t in trainers]
    await _all("transferring the weights", receive + send)
    transferred = time.perf_counter()
    await _all("resuming the engines", [e.resume() for e in engines])
    ended = time.perf_counter()
    return PublishReport(manifest.total_bytes, ended - started, ended - paused, transferred - transfer, sum(held))


async def learn_copies(trainers: Sequence[Any], engines: Sequence[Any], manifest: Any) -> list[str]:
    """Before training, while every engine holds the trainer's weights: each learns to take publications as plain copies.

    Returns for every engine why it cannot, or an empty string.
    """
    await _all("gathering the weights", [t.prepare_weights() for t in trainers])
    learning = [e.learn_copies(manifest) for e in engines]
    answers = await _all("learning the copies", learning + [t.send_weights() for t in trainers])
    return answers[: len(engines)]
