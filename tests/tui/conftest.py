"""Driving the app by keyboard over a scripted source, at a fixed size and time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from textual.widgets import Footer

from molt_tui.tui.app import MoltApp
from tests.tui.fake_source import FakeSource

os.environ["TZ"] = "UTC"
time.tzset()


class Driver:
    """Keys in, screen out. Every step waits until all questions are answered and drawn."""

    def __init__(self, app: MoltApp, pilot, source: FakeSource) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    async def settle(self) -> None:
        """Questions may follow from answers; two quiet rounds in a row mean that none is left."""
        quiet = 0
        while quiet < 2:
            idle = self.app.background.wait_idle(0.0)
            if not idle:
                assert await asyncio.to_thread(self.app.background.wait_idle, 10.0)
            await self.pilot.pause(0.0)
            quiet = quiet + 1 if idle else 0
        for _ in range(20):
            if all(footer.children for footer in self.app.screen.query(Footer)):
                break
            await self.pilot.pause(0.01)  # the footer composes itself some time after the rest

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        await self.press(*text)

    async def wait_for(self, words: str) -> None:
        """Until the words are on the screen; a busy machine may need longer than any number of rounds."""
        for _ in range(200):
            if words in self.text():
                return
            await self.pilot.pause(0.05)
        raise AssertionError(f"{words!r} does not come up:\n{self.text()}")

    async def refresh(self) -> None:
        self.app.screen.look()
        await self.settle()

    def notices(self) -> list[str]:
        return [notice.message for notice in self.app._notifications]

    def text(self) -> str:
        """What the terminal shows, line by line."""
        lines = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines)


Opener = Callable[..., AbstractAsyncContextManager[Driver]]


@pytest.fixture
def open_app() -> Opener:
    """An async context: open_app(size=(80, 24), source=FakeSource(), run=None, theme=None)."""

    @asynccontextmanager
    async def opened(size=(80, 24), source=None, run=None, theme=None) -> AsyncIterator[Driver]:
        source = source or FakeSource()
        app = MoltApp(source, interval_s=3600.0, open_run=run)
        async with app.run_test(size=size) as pilot:
            if theme:
                app.theme = theme
            driver = Driver(app, pilot, source)
            await driver.settle()
            yield driver

    return opened
