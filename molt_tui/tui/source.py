"""What the screens ask for. `Source` is the interface; its implementation over the services lives in store_source.py,
a scripted one in the tests. Every method may block and is called off the UI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from molt_tui.tui.cluster_view import ClusterSource
from molt_tui.tui.data_source import DataSource
from molt_tui.tui.launch_view import LaunchSource

if TYPE_CHECKING:
    from molt_tui.tui.view import RunView
    from molt_tui.verdict import Verdict


@dataclass(frozen=True)
class RunLine:
    """One line of the Runs screen; all text is clean. `age_s`: since the run's own writers last said something;
    `verdict`: how an active run fares."""

    id: str
    name: str
    state: str
    detail: str = ""
    step: int | None = None
    max_steps: int | None = None
    version: int | None = None
    attempts: int = 0
    reward: float | None = None
    rewards: tuple[float, ...] = ()
    age_s: float | None = None
    created: float = 0.0
    group: str | None = None
    tags: tuple[str, ...] = ()
    recipe: str = ""
    job_id: str | None = None
    host: str = ""
    verdict: Verdict | None = None

    @property
    def active(self) -> bool:
        return self.state in {"queued", "starting", "running", "paused", "stopping"}


class Source(LaunchSource, ClusterSource, DataSource, Protocol):
    def ingest(self) -> None: ...

    def runs(self) -> Sequence[RunLine]: ...

    def run(self, run_id: str, points: int) -> RunView:
        """Everything the dashboard shows; at most `points` points per curve."""
        ...

    def control(self, run_id: str, name: str, args: Mapping[str, Any] | None = None) -> str:
        """Send a command; returns what was done in words."""
        ...


class OpenedLater:
    """A source that is opened by the first question, which is asked off the UI thread: the first paint does not wait for it."""

    def __init__(self, open_it: Callable[[], Source]) -> None:
        self._open, self._lock = open_it, Lock()
        self._source: Source | None = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._source is None:
                self._source = self._open()
        return getattr(self._source, name)
