"""Launching on this machine: resolve and validate first, make the run directory, start its supervisor, see that it lives."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui import spawn
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.services.runs import Run
from molt_tui.store.home import Home

if TYPE_CHECKING:
    from engine.config import Config
    from engine.recipes import Recipe

ENGINE_MODULES = ("ray", "vllm", "torch")
START_S = 20.0


@dataclass(frozen=True)
class PlannedRun:
    name: str
    config: Config

    @property
    def settings(self) -> dict[str, Any]:
        """Flag -> value of everything that differs from the defaults."""
        from engine.flags import changed_fields

        return changed_fields(self.config)


@dataclass(frozen=True)
class Plan:
    """What a launch would do; making it has changed nothing."""

    recipe: Recipe
    runs: tuple[PlannedRun, ...]
    group: str | None
    tags: tuple[str, ...]
    arguments: tuple[str, ...]
    runs_root: Path

    @property
    def command(self) -> list[str]:
        """The command that would be started for each run; a missing engine is named by this interpreter."""
        try:
            python = engine_python()
        except MoltError:
            python = sys.executable
        return spawn.supervisor_command(python, self.runs_root / "RUN")


def engine_python() -> str:
    """The interpreter for local runs: this one if it has the engine, else MOLT_TUI_ENGINE_PYTHON. Raises Refused."""
    if all(importlib.util.find_spec(name) for name in ENGINE_MODULES):
        return sys.executable
    chosen = os.environ.get("MOLT_TUI_ENGINE_PYTHON")
    if not chosen:
        raise Refused(
            "this environment has no engine (ray, vllm, torch): run `make demo` in a checkout, which installs it, or set"
            " MOLT_TUI_ENGINE_PYTHON to the python of an environment that has it"
        )
    missing = spawn.missing_modules(chosen, ENGINE_MODULES)
    if missing:
        raise Refused(f"MOLT_TUI_ENGINE_PYTHON={chosen} has no {', '.join(missing)}; install the engine there")
    return chosen


def make_plan(home: Home, recipe: str, flags: Sequence[str], *, name: str | None = None, group: str | None = None,
              seeds: int = 1, tags: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> Plan:  # fmt: skip
    """Resolve a recipe with dotted flags and validate it. Raises NotFound, or Refused with every problem, one a line.

    `base` holds a site's defaults, below the recipe's own settings.
    `seeds` > 1 plans that many runs as one group, with train.seed counting up from the recipe's.
    """
    from engine.recipes import load

    found, config, problems = load(recipe, flags, base)
    if found is None:
        raise NotFound("\n".join(map(str, problems)))
    if config is None or problems:
        raise Refused("\n".join(str(problem) for problem in problems) or f"recipe {recipe} cannot be used")
    base = name or Path(found.name).stem
    if seeds == 1:
        runs = (PlannedRun(base, config),)
    else:
        runs = tuple(_with_seed(base, config, config.train.seed + i) for i in range(seeds))
    return Plan(found, runs, group or (base if seeds > 1 else None), tuple(tags), ("launch", recipe, *flags), home.runs_root)


def _with_seed(base: str, config: Config, seed: int) -> PlannedRun:
    train = config.train.model_copy(update={"seed": seed})
    return PlannedRun(f"{base}-s{seed}", config.model_copy(update={"train": train}))


def launch(plan: Plan, *, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Make the run directories, start the supervisors and return the run ids once each has claimed its first attempt.

    Raises Refused without an engine (nothing is made then), MoltError with the id of a run whose supervisor ended at once.
    """
    from engine.rundir import RunDirError, prepare_run

    python = engine_python()
    ids = []
    for planned in plan.runs:
        try:
            run = prepare_run(plan.runs_root, planned.config, plan.recipe, name=planned.name, group=plan.group,
                              command=["molt-tui", *plan.arguments], tags=plan.tags)  # fmt: skip
        except RunDirError as error:
            raise MoltError(str(error)) from error
        _start(python, run.path, 0)
        say(f"{run.path.name} started")
        ids.append(run.path.name)
    return ids


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
