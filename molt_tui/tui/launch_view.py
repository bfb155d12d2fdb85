"""What the launch screens show: plain, clean values, made off the UI thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from molt_tui.draft import Draft


@dataclass(frozen=True)
class RecipeCard:
    """One recipe that can be launched; `problem` says why it cannot, `misfit` that it needs more than this machine has."""

    name: str
    title: str = ""
    task: str = ""
    model: str = ""
    hardware: str = ""
    problem: str = ""
    misfit: str = ""


@dataclass(frozen=True)
class FormField:
    """One flag of the launch form. `origin`: yours, sweep, run, recipe, site or default; `value` as it is typed; `choices`:
    what it can be, when that is a short list."""

    flag: str
    value: str
    default: str
    origin: str
    expects: str
    help: str
    problem: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """The form after resolving a draft; launch is possible when there is no problem. `runs`: how many it would start;
    `reviewable`: the settings are valid, so that it can be shown what they mean, whatever else keeps it from starting."""

    recipe: str
    fields: tuple[FormField, ...]
    problems: tuple[str, ...]
    command: str
    runs: int = 1
    where: str = "this machine"
    reviewable: bool = True


@dataclass(frozen=True)
class PastRun:
    """A run that a launch can be compared with."""

    id: str
    name: str
    state: str
    recipe: str
    created: float = 0.0


@dataclass(frozen=True)
class Review:
    """What would be started, and how it differs from a past run. `changes`: (flag, before, after); `script` and its diff are
    empty for a local run, `memory` too when there is nothing to estimate. `warning`: what to know before it is started."""

    command: str
    runs: tuple[tuple[str, str], ...]
    group: str = ""
    against: PastRun | None = None
    changes: tuple[tuple[str, str, str], ...] = ()
    agent: str = ""
    script: tuple[str, ...] = ()
    script_diff: tuple[str, ...] = ()
    memory: tuple[tuple[str, str, str, str], ...] = ()
    memory_words: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True)
class Checks:
    """What the cluster says to a submission: (level, sentence) findings, `start` in words. Nothing may be submitted while one
    finding is `critical`."""

    findings: tuple[tuple[str, str], ...] = ()
    start: str = ""

    @property
    def refused(self) -> bool:
        return any(level == "critical" for level, _ in self.findings)


@dataclass(frozen=True)
class Started:
    """Ids of the runs, and what was said about them, the last line being the newest."""

    ids: tuple[str, ...]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.words[-3:]) or f"{', '.join(self.ids[:3])}{' and more' if len(self.ids) > 3 else ''} started"


class LaunchSource(Protocol):
    """What the launch screens ask. Every method may block and is called off the UI thread."""

    def recipes(self) -> Sequence[RecipeCard]: ...

    def first_draft(self, recipe: str, parent: str) -> Draft:
        """Where a form begins: a recipe by name, or a run by id."""
        ...

    def form(self, draft: Draft) -> Form: ...

    def past_runs(self, draft: Draft) -> Sequence[PastRun]:
        """Runs to compare with, those of the same recipe first."""
        ...

    def review(self, draft: Draft, against: str | None) -> Review:
        """`against`: id of a past run; None: the parent, or the last run of the recipe."""
        ...

    def checks(self, draft: Draft) -> Checks:
        """Preflight of a launch on Slurm; asks the controller."""
        ...

    def launch(self, draft: Draft) -> Started:
        """Start or submit everything, once."""
        ...
