"""Launching on this machine: resolve and validate first, make the run directory, start its supervisor, see that it lives."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui import spawn
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.services.machine import crowding, misfit
from molt_tui.services.runs import Run
from molt_tui.services.sweep import Axis, expand, label
from molt_tui.store.home import Home

if TYPE_CHECKING:
    from engine.config import Config
    from engine.flags import Problem
    from engine.recipes import Recipe
    from engine.wire import RunDir

ENGINE_MODULES = ("ray", "vllm", "torch")
NO_ENGINE = (
    "this environment has no engine (ray, vllm, torch): `make demo` in a checkout installs it, or set"
    " MOLT_TUI_ENGINE_PYTHON to a python that has it"
)
START_S = 20.0


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan; `flags` are those that it has beyond the others'."""

    name: str
    config: Config
    flags: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Flag -> value of everything that differs from the defaults."""
        from engine.flags import changed_fields

        return changed_fields(self.config)


@dataclass(frozen=True)
class Plan:
    """What a launch would do; making it has changed nothing. `parent`: the run whose settings it starts from."""

    recipe: Recipe
    runs: tuple[PlannedRun, ...]
    group: str | None
    tags: tuple[str, ...]
    arguments: tuple[str, ...]
    runs_root: Path
    parent: str | None = None

    @property
    def warning(self) -> str | None:
        """What to know before all of it is started on this machine; it can be started all the same."""
        return crowding([run.config for run in self.runs])

    def command_of(self, planned: PlannedRun) -> list[str]:
        """The command that would start one run of the plan alone."""
        return ["molt-tui", *self.arguments, *planned.flags]

    @property
    def command(self) -> list[str]:
        """The command that would be started for each run; a missing engine is named by this interpreter."""
        try:
            python = engine_python()
        except MoltError:
            python = sys.executable
        return spawn.supervisor_command(python, self.runs_root / "RUN")


def has_engine() -> bool:
    """Whether this interpreter has the engine's packages, found without importing them."""
    return all(importlib.util.find_spec(name) for name in ENGINE_MODULES)


def lacks_engine() -> str | None:
    """Why no run can start on this machine, as far as it can be known without starting another interpreter."""
    return None if has_engine() or os.environ.get("MOLT_TUI_ENGINE_PYTHON") else NO_ENGINE


def engine_python() -> str:
    """The interpreter for local runs: this one if it has the engine, else MOLT_TUI_ENGINE_PYTHON. Raises Refused."""
    if has_engine():
        return sys.executable
    chosen = os.environ.get("MOLT_TUI_ENGINE_PYTHON")
    if not chosen:
        raise Refused(NO_ENGINE)
    missing = spawn.missing_modules(chosen, ENGINE_MODULES)
    if missing:
        raise Refused(f"MOLT_TUI_ENGINE_PYTHON={chosen} has no {', '.join(missing)}; install the engine there")
    return chosen


def make_plan(home: Home, recipe: str, flags: Sequence[str], **more: Any) -> Plan:
    """As `draw_up`. Raises NotFound for a missing recipe, or Refused with every problem, one a line."""
    plan, problems, found = draw_up(home, recipe, flags, **more)
    if not found:
        raise NotFound("\n".join(map(str, problems)))
    if plan is None:
        raise Refused("\n".join(map(str, problems)) or f"recipe {recipe} cannot be used")
    return plan


def draw_up(home: Home, recipe: str, flags: Sequence[str], *, name: str | None = None, group: str | None = None,
            seeds: int = 1, tags: Sequence[str] = (), base: Mapping[str, Any] | None = None, axes: Sequence[Axis] = (),
            samples: int | None = None, parent: Run | None = None) -> tuple[Plan | None, list[Problem], bool]:  # fmt: skip
    """(plan, every problem, whether the recipe exists); the plan is there only without a problem.

    `base` holds a site's defaults, below the recipe's own settings. Every combination of `axes` (or `samples` of them) is
    a run, times `seeds` with train.seed counting up from the recipe's; several runs are one group. `parent`: its run.toml
    takes the place of the recipe's file. Raises Refused for a sweep that makes no sense.
    """
    from engine.recipes import find_recipe, load

    path = str(parent.directory.run_toml) if parent is not None else recipe
    found, _ = find_recipe(path)
    if found is None:
        return None, load(path, flags, base)[2], False
    _check_axes(axes, flags, seeds)
    combinations = expand(axes, samples, runs_each=seeds)
    first = name or (parent.name if parent is not None else Path(found.name).stem)
    runs, problems = _resolved(path, flags, combinations, base, seeds, first)
    if problems:
        return None, problems, True
    if parent is not None:
        found = replace(found, name=parent.recipe or found.name)
    arguments = ("relaunch", parent.id, *flags) if parent is not None else ("launch", recipe, *flags)
    own_group = group or (first if len(runs) > 1 else None)
    return Plan(found, tuple(runs), own_group, tuple(tags), arguments, home.runs_root, parent.id if parent else None), [], True


def _check_axes(axes: Sequence[Axis], flags: Sequence[str], seeds: int) -> None:
    from engine.flags import parse_overrides

    set_here = parse_overrides(flags)[0]
    for axis in axes:
        if axis.flag in set_here:
            raise Refused(f"--{axis.flag}: is swept and set; leave one of them out")
        if axis.flag == "train.seed" and seeds > 1:
            raise Refused("--sweep train.seed: --seeds counts it up as well; leave one of them out")


def _resolved(path: str, flags: Sequence[str], combinations: Sequence[Mapping[str, str]], base: Mapping[str, Any] | None,
              seeds: int, name: str) -> tuple[list[PlannedRun], list[Problem]]:  # fmt: skip
    """One run per combination and seed, and the problems of all combinations, each named once."""
    from engine.recipes import load

    runs, problems = [], []
    for combination in combinations:
        extra = [f"--{flag}={value}" for flag, value in combination.items()]
        _, config, wrong = load(path, [*flags, *extra], base)
        problems += wrong
        if config is None:
            continue
        words = label(combination, combination)
        stem = f"{name}-{words}" if words else name
        for number in range(seeds):
            seed = config.train.seed + number
            more = [f"--train.seed={seed}"] if seeds > 1 else []
            train = config.train.model_copy(update={"seed": seed})
            own = config.model_copy(update={"train": train}) if seeds > 1 else config
            runs.append(PlannedRun(f"{stem}-s{seed}" if seeds > 1 else stem, own, tuple(extra + more)))
    return runs, list(dict.fromkeys(problems))


def launch(plan: Plan, *, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Make the run directories, start the supervisors and return the run ids once each has claimed its first attempt.

    Raises Refused without an engine or the GPUs (nothing is made then), MoltError with the id of a run whose supervisor
    ended at once.
    """
    python = engine_python()
    problems = dict.fromkeys(str(problem) for run in plan.runs if (problem := misfit(run.config)) is not None)
    if problems:
        raise Refused("\n".join(problems))
    ids: list[str] = []
    for planned in plan.runs:
        try:
            run = prepare(plan, planned, planned.config)
            _start(python, run.path, 0)
        except MoltError as error:
            if ids:
                raise MoltError(f"{len(ids)} of {len(plan.runs)} were started ({', '.join(ids)}); then: {error}") from error
            raise
        say(f"{run.path.name} started")
        ids.append(run.path.name)
    return ids


def prepare(plan: Plan, planned: PlannedRun, config: Config, cluster: str = "local") -> RunDir:
    """The run directory of one planned run. Raises MoltError."""
    from engine.rundir import RunDirError, prepare_run

    try:
        return prepare_run(plan.runs_root, config, plan.recipe, name=planned.name, group=plan.group, parent=plan.parent,
                           command=plan.command_of(planned), tags=plan.tags, cluster=cluster)  # fmt: skip
    except RunDirError as error:
        raise MoltError(str(error)) from error


def start_next_attempt(run: Run) -> int:
    """Start the next attempt of a run that ended (or never began); returns its number. Raises Refused, MoltError."""
    if run.cluster != "local":
        raise Refused(f"{run.id} was launched on {run.cluster}; `molt-tui requeue {run.id}` submits it again")
    if run.state == "completed":
        raise Refused(f"{run.id} is completed; launch its recipe again for more")
    numbers = run.directory.attempt_numbers()
    last = numbers[-1] if numbers else 0
    from molt_tui.store.runs import read_json

    record = read_json(run.directory.attempt(last) / "exit.json") or {}
    if record.get("resumable") is False:
        raise Refused(f"{run.id} has no checkpoint to continue from; launch it again with `molt-tui launch {run.recipe}`")
    return _start(engine_python(), run.path, last)


def _start(python: str, path: Path, last: int) -> int:
    """Start a supervisor and wait until it has claimed an attempt after `last`."""
    from engine.wire import RunDir

    process = spawn.start_supervisor(python, path)
    run, deadline = RunDir(path), time.monotonic() + START_S
    while True:
        ended = process.poll()
        newer = [n for n in run.attempt_numbers() if n > last]
        if newer:
            return newer[-1]
        if ended is not None:
            raise MoltError(f"{path.name}: its supervisor ended at once: {last_line(path / spawn.SUPERVISOR_LOG)}")
        if time.monotonic() > deadline:
            raise MoltError(f"{path.name}: its supervisor does not begin; see {path / spawn.SUPERVISOR_LOG}")
        time.sleep(0.05)


def last_line(path: Path) -> str:
    """The last thing that a detached process said."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def follow(path: Path, *, pause_s: float = 0.5) -> Iterator[dict[str, Any]]:
    """Events of a run's newest attempt as they are written, from its beginning until its exit record; both streams."""
    from engine.wire import EventReader, RunDir

    run = RunDir(path)
    number = (run.attempt_numbers() or [1])[-1]
    readers = [EventReader(run.attempt(number) / stream) for stream in ("supervisor", "events")]
    from molt_tui.store.liveness import process_alive
    from molt_tui.store.runs import supervisor_of

    while True:
        over = (run.attempt(number) / "exit.json").exists() or process_alive(supervisor_of(run)) is False
        events = [event for reader in readers for event in reader.poll()]
        yield from sorted(events, key=lambda e: e.get("t") if isinstance(e.get("t"), (int, float)) else 0.0)
        if over:
            return
        time.sleep(pause_s)
