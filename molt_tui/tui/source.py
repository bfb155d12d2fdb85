"""What the screens ask for. `Source` is the interface; its implementation over the services lives in store_source.py,
a scripted one in the tests. Every method may block and is called off the UI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from molt_tui.tui.data_source import DataSource

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


@dataclass(frozen=True)
class RecipeCard:
    """One recipe that can be launched; `problem` says why it cannot."""

    name: str
    title: str = ""
    task: str = ""
    model: str = ""
    hardware: str = ""
    problem: str = ""


@dataclass(frozen=True)
class FormField:
    """One flag of the launch form. `origin`: yours, recipe or default; `value` as it is typed on the command line."""

    flag: str
    value: str
    default: str
    origin: str
    expects: str
    help: str


@dataclass(frozen=True)
class Form:
    """The form after resolving a recipe with the changed flags; launch is possible when there is no problem."""

    recipe: str
    fields: tuple[FormField, ...]
    problems: tuple[str, ...]
    command: str


class Source(DataSource, Protocol):
    def ingest(self) -> None: ...

    def runs(self) -> Sequence[RunLine]: ...

    def run(self, run_id: str, points: int) -> RunView:
        """Everything the dashboard shows; at most `points` points per curve."""
        ...

    def control(self, run_id: str, name: str, args: Mapping[str, Any] | None = None) -> str:
        """Send a command; returns what was done in words."""
        ...

    def recipes(self) -> Sequence[RecipeCard]: ...

    def form(self, recipe: str, changes: Mapping[str, str]) -> Form: ...

    def launch(self, recipe: str, changes: Mapping[str, str], name: str, group: str) -> str:
        """Start a run; returns its id."""
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
