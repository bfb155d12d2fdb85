"""Read-only mode: one guard for everything on the screens that would change a run or start one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from molt_tui.errors import Refused

REFUSAL = "read-only: leave and start molt-tui without --read-only (or read_only in tui.toml) to change runs"
P, R = ParamSpec("P"), TypeVar("R")


class Guarded(Protocol):
    read_only: bool


G = TypeVar("G", bound=Guarded)


def changes(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """Mark a method of a source that changes something; in read-only mode it raises Refused instead."""

    @wraps(method)
    def guarded(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.read_only:
            raise Refused(REFUSAL)
        return method(self, *args, **kwargs)

    return guarded
