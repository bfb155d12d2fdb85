"""Control commands of a running attempt: read from the inbox, applied at a safe point, each answered by an event."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from engine.config import LIVE_KNOBS, Config
from engine.flags import flatten, resolve
from engine.protocol import ControlCommand, ControlEvent, EventWriter, take_commands
from engine.validate import validate
from engine.wire import RunDir

POLL_SECONDS = 0.3


class BadCommand(ValueError):
    """A command that cannot be carried out; its message is the answer."""


@dataclass
class Inbox:
    """Collects commands in the background; the loop takes them at safe points. `arrived` is set while some are pending."""

    run: RunDir
    events: EventWriter
    pending: deque[ControlCommand] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        """Poll the inbox until cancelled; a listing of an empty directory is all it costs."""
        while True:
            # A file system that fails for a moment must not end the watch: no later command would be answered.
            with suppress(OSError):
                new = await asyncio.to_thread(take_commands, self.run)
                if new:
                    self.pending.extend(new)
                    self.arrived.set()
            await asyncio.sleep(POLL_SECONDS)

    def put(self, name: str, who: str) -> None:
        """A command from inside the process (a signal)."""
        self.pending.append(ControlCommand(id=f"{who}-{name}", name=name, who=who))
        self.arrived.set()

    def take(self) -> ControlCommand:
        """The oldest pending command."""
        command = self.pending.popleft()
        if not self.pending:
            self.arrived.clear()
        return command

    def answer(self, command: ControlCommand, ok: bool, message: str, step: int, version: int) -> None:
        self.events.emit(ControlEvent, step=step, version=version, id=command.id, name=command.name, ok=ok,
                         message=message, who=command.who, args=command.args)  # fmt: skip


def live_knobs(config: Config) -> dict[str, Any]:
    """The values that commands may change, by flag; everything that uses one reads it here."""
    return {flag: value for flag, value in flatten(config) if flag in LIVE_KNOBS}


def changed_knobs(knobs: dict[str, Any], args: dict[str, Any], config: Config) -> dict[str, Any]:
    """The knobs with the values of a command, typed. Raises BadCommand for what a launch with these settings would refuse."""
    for key in args:
        if key not in LIVE_KNOBS:
            raise BadCommand(f"{key} cannot be changed while the run is live; these can: {', '.join(sorted(LIVE_KNOBS))}")
    known = validate(config)
    tree, problems = resolve(config.model_dump(), {flag: _words(value) for flag, value in (knobs | args).items()})
    for problem in problems or validate(tree):
        if problem not in known:
            raise BadCommand(str(problem))
    return live_knobs(tree)


def _words(value: Any) -> list[str]:
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value).split()
