"""What the Cluster screen and the job line of a run show: plain, clean values, made off the UI thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PartitionRow:
    """One partition. `nodes`: (state, count); `gpus`: (type, free, all); `out`: (node, why it is out of service)."""

    name: str
    default: bool
    state: str
    limit: str
    nodes: tuple[tuple[str, int], ...] = ()
    gpus: tuple[tuple[str, int, int], ...] = ()
    out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobRow:
    """One own job and its run. `state` is the run's; `words`: why it waits; `start`, `end`: epoch seconds, expected ones too."""

    run: str
    name: str
    job_id: str
    state: str
    words: str = ""
    nodes: int | None = None
    node_list: str = ""
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True)
class ClusterView:
    """One cluster. `answered`: when Slurm said so (epoch seconds of this host), None if never; `error`: why not since; `here`:
    whether this machine talks to it."""

    name: str
    partitions: tuple[PartitionRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    answered: float | None = None
    error: str = ""
    here: bool = True


@dataclass(frozen=True)
class JobView:
    """The job of one Slurm run. `submission`: submitting, submitted, refused, unknown, absent or empty; `said`: Slurm's words
    on it; `enough`: whether the run ends before its time limit; `attempts`: (number, how it ended or empty, last step)."""

    cluster: str
    job_id: str = ""
    submission: str = ""
    said: str = ""
    state: str = ""
    words: str = ""
    node_list: str = ""
    start: float | None = None
    end: float | None = None
    answered: float | None = None
    error: str = ""
    forecast: str = ""
    enough: bool | None = None
    attempts: tuple[tuple[int, str, int | None], ...] = ()


class ClusterSource(Protocol):
    """What the screens ask about clusters. Every method may block and is called off the UI thread."""

    def clusters(self) -> Sequence[ClusterView]:
        """The cluster of this machine first; never fails for what Slurm does."""
        ...

    def job(self, run_id: str) -> JobView | None:
        """None for a local run. Asks nobody but the database."""
        ...

    def stacks(self, run_id: str) -> str: ...
