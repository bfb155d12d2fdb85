"""What the screens ask for. `Source` is the interface; its implementation over the services lives in store_source.py,
a scripted one in the tests. Every method may block and is called off the UI thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from molt_tui.lines import RunLine
from molt_tui.tui.cluster_view import ClusterSource
from molt_tui.tui.data_source import DataSource
from molt_tui.tui.launch_view import LaunchSource

if TYPE_CHECKING:
    from molt_tui.comparison import Comparison
    from molt_tui.tui.view import RunView
    from molt_tui.verdict import Timeline

Trend = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class NoteLine:
    """A remark of a person on a run, or a tag given or taken; all text is clean."""

    t: float | None
    who: str
    action: str
    text: str


class Source(LaunchSource, ClusterSource, DataSource, Protocol):
    def ingest(self) -> None: ...

    def runs(self) -> Sequence[RunLine]:
        """Every run; one that did not change is the same object as before."""
        ...

    def trends(self, run_ids: Sequence[str]) -> Mapping[str, Trend]:
        """The last (step, reward/mean) of these runs; a run that is gone is left out."""
        ...

    def notes(self, run_id: str) -> Sequence[NoteLine]:
        """Remarks and tag changes, oldest first."""
        ...

    def retag(self, run_ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> str: ...

    def note(self, run_ids: Sequence[str], text: str) -> str: ...

    def delete(self, run_ids: Sequence[str]) -> str:
        """Delete runs for good; raises MoltError when one is refused, after the others are gone."""
        ...

    def compare(self, refs: Sequence[str], metric: str, by: str) -> Comparison:
        """Runs (by id) and groups (`group:NAME`) side by side; the same object as before when nothing is new."""
        ...

    def comparison_text(self, refs: Sequence[str], metric: str, by: str) -> str:
        """The tables of a comparison as Markdown."""
        ...

    def export_comparison(self, refs: Sequence[str], metric: str, by: str, path: str) -> str:
        """Write a new file by its ending; returns what was done in words."""
        ...

    def run(self, run_id: str, points: int, at: int | None = None, metric: str | None = None) -> RunView:
        """Everything the dashboard shows, at most `points` points per curve; as it was when step `at` was the newest one,
        with the curve of one more metric."""
        ...

    def timeline(self, run_id: str) -> Timeline:
        """When which alert applied, over the whole run."""
        ...

    def control(self, run_id: str, name: str, args: Mapping[str, Any] | None = None) -> str:
        """Send a command; returns what was done in words."""
        ...
