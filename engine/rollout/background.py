"""Tasks that nobody awaits."""

import asyncio
from collections.abc import Awaitable
from typing import Any


class Background:
    """Keeps tasks until they are done, as a loop alone does not, and drops their errors."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # an error that is never taken would be reported
