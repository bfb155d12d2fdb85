"""A source of data that costs nothing until somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from molt_tui.tui.source import Source


class OpenedLater:
    """A source that is opened by the first question, which is asked off the UI thread: the first paint does not wait for it."""

    def __init__(self, open_it: Callable[[], Source]) -> None:
        self._open, self._lock = open_it, Lock()
        self._source: Source | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of that name; even naming it does not open the source, only calling it."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._source is None:
                    self._source = self._open()
            return getattr(self._source, name)(*args, **kwargs)

        return ask
