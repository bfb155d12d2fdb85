"""What the Traces, token and Query screens ask for: a part of `Source`. Methods may block and are called off the UI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from molt_tui.text import clean
from molt_tui.tui import format

if TYPE_CHECKING:
    from molt_tui.services.queries import SavedQuery
    from molt_tui.store.query import QueryResult
    from molt_tui.tokens import Place, Rollout


def one_line(text: str) -> str:
    """Clean text of rollouts on one line, line ends as a visible mark."""
    return clean(text).replace("\\n", "↵")


def info_words(info: Mapping[str, Any]) -> str:
    """What the environment reported beside the reward, as clean text."""
    return "  ".join(f"{clean(k)} {clean(format.number(v))}" for k, v in info.items())


@dataclass(frozen=True)
class TraceLine:
    """One rollout of the Traces screen. `figures` are numbers by name of the rollouts view, None where not measured; the rest
    is clean text."""

    place: Place
    rollout: str
    prompt_id: str
    group: str
    figures: Mapping[str, float | None]
    prompt: str = ""
    response: str = ""
    expected: str = ""
    info: str = ""
    truncated: bool = False

    @property
    def key(self) -> str:
        return f"{self.place.attempt}/{self.place.step}/{self.place.rollout_id}"


@dataclass(frozen=True)
class TraceView:
    """Rollouts of one step, of the whole run (`step` None), or those that a search found. `steps`: all with a record."""

    run_id: str
    name: str
    steps: Sequence[int]
    step: int | None
    lines: Sequence[TraceLine]
    limited: bool = False


@dataclass(frozen=True)
class TokenPage:
    """One rollout token by token. `rewards`: of the recorded rollouts of its group; `layers`: MoE layers of the model, None
    where the run has not reported them."""

    rollout: Rollout
    rewards: Sequence[float | None] = ()
    layers: int | None = None


@dataclass(frozen=True)
class Vocabulary:
    """What can be completed: words of SQL anywhere, names of metrics and runs inside quotes."""

    words: Sequence[str] = ()
    quoted: Sequence[str] = ()
    saved: Sequence[SavedQuery] = field(default_factory=tuple)


class DataSource(Protocol):
    def traces(self, run_id: str, step: int | None, sort: str, reverse: bool) -> TraceView:
        """One step, by default the newest, in this order."""
        ...

    def all_traces(self, run_id: str, text: str, sort: str, reverse: bool) -> TraceView:
        """Every step of a run; with `text` only rollouts that contain it."""
        ...

    def rollout(self, run_id: str, place: Place) -> TokenPage: ...

    def group(self, run_id: str, place: Place) -> Sequence[Rollout]: ...

    def query(self, sql: str, cancelled: Callable[[], bool]) -> QueryResult: ...

    def vocabulary(self) -> Vocabulary: ...

    def save_query(self, name: str, sql: str) -> None: ...

    def delete_query(self, name: str) -> None: ...

    def write_result(self, result: QueryResult, style: str, path: str) -> str:
        """Write a result to a file; returns its full path."""
        ...

    def find_place(self, row: Mapping[str, Any]) -> tuple[str, Place | None] | None:
        """The run, and if it names one the rollout, that a row of a result is about."""
        ...
