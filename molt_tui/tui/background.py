"""Work off the UI thread: one thread ingests for ever, another answers the screens' questions, newest first.

A stalled terminal blocks the UI thread only; neither of these waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump

from molt_tui.errors import MoltError

log = logging.getLogger(__name__)
T = TypeVar("T")


class Ingested(Message, bubble=False):
    """An ingest pass is over: screens look again. At most one is waiting at any time."""

    def __init__(self, error: str | None) -> None:
        self.error = error
        super().__init__()


class Answer(Message, bubble=False):
    """The answer to `ask`; exactly one of value and error is set."""

    def __init__(self, topic: str, value: Any = None, error: str | None = None) -> None:
        self.topic, self.value, self.error = topic, value, error
        super().__init__()


@dataclass(frozen=True)
class _Question:
    target: MessagePump
    topic: str
    work: Callable[[], Any]
    otherwise: MessagePump | None = None


class Background:
    """`ask` replaces an unanswered question of the same target and topic, so a slow disk never builds a backlog."""

    def __init__(self, app: App, ingest: Callable[[], Any], interval_s: float) -> None:
        self.app, self.ingest, self.interval_s = app, ingest, interval_s
        self._questions: dict[tuple[int, str], _Question] = {}
        self._wake = threading.Condition()
        self._stop = threading.Event()
        self._busy = False
        self._announced = threading.Event()
        self._now = threading.Event()

    def start(self) -> None:
        for name, target in (("ingest", self._ingest_loop), ("reader", self._reader_loop)):
            threading.Thread(target=target, name=f"molt-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._now.set()
        with self._wake:
            self._wake.notify_all()

    def ask(self, target: MessagePump, topic: str, work: Callable[[], Any]) -> None:
        """Run `work` in the reader thread; `target` gets an Answer."""
        with self._wake:
            self._questions[id(target), topic] = _Question(target, topic, work)
            self._wake.notify_all()

    def act(self, target: MessagePump, topic: str, work: Callable[[], Any], otherwise: MessagePump | None = None) -> None:
        """Run something slow that changes a run (a stop waits for its end) beside the reader; `target` gets an Answer, or
        `otherwise` where the target was closed meanwhile."""
        question = _Question(target, topic, work, otherwise)
        threading.Thread(target=self._answer, args=(question,), name=f"molt-{topic}", daemon=True).start()

    async def within(self, seconds: float, work: Callable[[], T]) -> T:
        """The result of `work`, of which the process does not wait for the end. Raises TimeoutError, and what `work` raises."""
        result: Future[T] = Future()
        result.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result.set_result(work())
            except Exception as problem:
                result.set_exception(problem)

        threading.Thread(target=run, name="molt-within", daemon=True).start()
        return await asyncio.wait_for(asyncio.wrap_future(result), seconds)

    def ingest_now(self) -> None:
        self._now.set()

    def handled(self) -> None:
        """The UI has seen the last Ingested; only then is the next one sent."""
        self._announced.clear()

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until every question was answered (tests)."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._questions and not self._busy, timeout_s)

    def _ingest_loop(self) -> None:
        while not self._stop.is_set():
            error = None
            try:
                self.ingest()
            except Exception as problem:  # one bad pass must not end the watch
                log.exception("ingest failed")
                error = one_line(problem)
            if not self._announced.is_set():
                self._announced.set()
                self._post(self.app, Ingested(error))
            self._now.wait(self.interval_s)
            self._now.clear()

    def _reader_loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._questions or self._stop.is_set())
                if self._stop.is_set():
                    return
                question = self._questions.pop(next(iter(self._questions)))
                self._busy = True
            self._answer(question)
            del question  # and with it the hold on the screen that asked
            with self._wake:
                self._busy = False
                self._wake.notify_all()

    def _answer(self, question: _Question) -> None:
        try:
            answer = Answer(question.topic, question.work())
        except MoltError as problem:  # said on the screen; nothing to look for in the code
            answer = Answer(question.topic, error=one_line(problem))
        except Exception as problem:
            log.exception("%s failed", question.topic)
            answer = Answer(question.topic, error=one_line(problem))
        if not self._post(question.target, answer) and question.otherwise is not None:
            self._post(question.otherwise, answer)

    def _post(self, target: MessagePump, message: Message) -> bool:
        """Whether the target is still there to get it."""
        if self._stop.is_set():
            return False
        try:
            return target.post_message(message)
        except Exception:
            log.debug("%s is gone", target)
            return False


def one_line(problem: BaseException) -> str:
    """An error as one line."""
    text = str(problem).strip() or type(problem).__name__
    return text.splitlines()[0]
