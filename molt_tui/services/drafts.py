"""What a launch form holds, and what becomes of it: every field's value and problem, the command, the plan."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui.draft import Draft
from molt_tui.errors import Refused
from molt_tui.services import launch
from molt_tui.services.machine import has_slurm, misfit
from molt_tui.services.runs import Run
from molt_tui.services.sweep import Axis, parse_axis
from molt_tui.store.home import Home
from molt_tui.text import shorten

if TYPE_CHECKING:
    from engine.flags import Problem

MAX_SEEDS = 64


@dataclass(frozen=True)
class FieldValue:
    """One flag: its value without the draft's change, and whose value that is: run, recipe, site or default."""

    flag: str
    value: Any
    default: Any
    origin: str


@dataclass(frozen=True)
class Examined:
    """`sketch`: what valid settings would start, here or elsewhere. `folder`: where relative file names of the recipe are
    meant from."""

    fields: tuple[FieldValue, ...]
    problems: tuple[Problem, ...]
    sketch: launch.Plan | None
    folder: Path

    @property
    def plan(self) -> launch.Plan | None:
        """What can be started: there only when there is no problem."""
        return None if self.problems else self.sketch


def examine(home: Home, draft: Draft, parent: Run | None = None) -> Examined:
    """Resolve and validate everything that the draft would start. Nothing is made."""
    from engine.flags import Problem
    from engine.recipes import find_recipe

    base, problems = _site(home, draft)
    found, _ = find_recipe(_path(draft, parent))
    folder = found.path.parent if found is not None else Path.cwd()
    fields = _fields(found.raw if found is not None else {}, base, "recipe" if parent is None else "run")
    try:
        seeds, samples, axes = _numbers(draft)
        plan, wrong, _ = launch.draw_up(home, draft.recipe, words_of(draft, folder), name=draft.name or None,
                                        group=draft.group or None, seeds=seeds, base=base, axes=axes, samples=samples,
                                        parent=parent)  # fmt: skip
        problems += wrong
    except Refused as refusal:
        plan = None
        problems += [_as_problem(line) for line in str(refusal).splitlines()]
    if plan is not None and draft.on == "local":
        misfits = [problem for run in plan.runs if (problem := misfit(run.config)) is not None]
        problems += dict.fromkeys(misfits)
        if (missing := launch.lacks_engine()) is not None:
            problems.append(Problem("", missing))
    if plan is not None and draft.on == "slurm":
        from molt_tui.services.slurm import lacks_engine

        problems += dict.fromkeys(problem for run in plan.runs if (problem := lacks_engine(run.config)) is not None)
    return Examined(tuple(fields), tuple(problems), plan, folder)


def _path(draft: Draft, parent: Run | None) -> str:
    return str(parent.directory.run_toml) if parent is not None else draft.recipe


def _site(home: Home, draft: Draft) -> tuple[dict[str, Any], list[Problem]]:
    """The site's defaults and what keeps this machine from submitting; nothing for a local run."""
    from engine.flags import Problem
    from molt_tui.slurm.site import read_site

    if draft.on == "local":
        return {}, []
    try:
        site = read_site(home.path)
    except Refused as refusal:
        return {}, [Problem("", line) for line in str(refusal).splitlines()]
    problems = [] if has_slurm() else [Problem("", "sbatch is not on the path: launch on Slurm from a login node of a cluster")]
    if site.runs_root is None and home.runs_root == home.path / "runs":
        words = "no runs_root is set: leave and run `molt-tui doctor --write-site`, which proposes a profile for this cluster"
        problems.append(Problem("", words))
    return site.base, problems


def _fields(raw: Mapping[str, Any], base: Mapping[str, Any], owner: str) -> list[FieldValue]:
    from engine.flags import flag_table, flatten, resolve

    slurm = raw.get("slurm", {})
    slurm = {**base.get("slurm", {}), **slurm} if isinstance(slurm, Mapping) else slurm
    values = dict(flatten(resolve({**raw, "slurm": slurm}, {})[0]))
    own = dict(flatten(resolve(raw, {})[0]))
    fields = []
    for info in flag_table().values():
        if not info.path.startswith("recipe."):
            value = values[info.path]
            origin = "default" if value == info.default else owner if value == own[info.path] else "site"
            fields.append(FieldValue(info.path, value, info.default, origin))
    return fields


def _numbers(draft: Draft) -> tuple[int, int | None, list[Axis]]:
    """(seeds, samples, axes). Raises Refused with one line per mistake."""
    wrong: list[str] = []

    def number(text: str, what: str, most: int) -> int:
        if len(text) < 10 and text.isascii() and text.isdigit() and 1 <= int(text) <= most:
            return int(text)
        wrong.append(f"{what} expects a whole number from 1 to {most}, got '{shorten(text, 40)}'")
        return 1

    seeds = number(draft.seeds.strip() or "1", "run seeds", MAX_SEEDS)
    samples = number(draft.samples.strip(), "run random", MAX_SEEDS) if draft.samples.strip() and draft.sweeps else None
    axes = []
    for flag, text in draft.sweeps.items():
        try:
            axes.append(parse_axis(f"{flag}={text}"))
        except Refused as refusal:
            wrong.append(str(refusal))
    if wrong:
        raise Refused("\n".join(wrong))
    return seeds, samples, axes


def _as_problem(line: str) -> Problem:
    """A refusal of a sweep belongs to the flag that it names."""
    from engine.flags import Problem

    for prefix in ("--sweep ", "--"):
        flag, colon, message = line.removeprefix(prefix).partition(": ")
        if line.startswith(prefix) and colon and " " not in flag:
            return Problem(flag, message)
    return Problem("", line)


def words_of(draft: Draft, folder: Path) -> list[str]:
    """The changes as flags of the command line, where a relative file name is meant from the working directory."""
    return [f"--{flag}={word}" for flag, text in draft.changes.items() for word in _entries(flag, _anchored(flag, text, folder))]


def _entries(flag: str, text: str) -> list[str]:
    """Lists of texts in which a comma is a comma are typed as a shell would read them."""
    if not _is_list_of_texts(flag):
        return [text]
    try:
        return shlex.split(text) or [""]
    except ValueError:  # an open quote
        return [text]


def _is_list_of_texts(flag: str) -> bool:
    from engine.flags import COMMA_TEXTS, flag_table

    info = flag_table().get(flag)
    return info is not None and info.kind == "str" and info.length == 0 and flag not in COMMA_TEXTS


def typed(flag: str, value: Any, folder: Path | None = None) -> str:
    """A value as it is typed in a form; file names inside `folder` are shown relative to it."""
    from engine.recipes import FILE_SETTINGS

    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        if _is_list_of_texts(flag):
            return shlex.join(map(str, value))
        return ",".join(typed(flag, v, folder) for v in value)
    text = str(value)
    if flag in FILE_SETTINGS and folder is not None and text.startswith(f"{folder}/"):
        return text.removeprefix(f"{folder}/")
    return text


def _anchored(flag: str, text: str, folder: Path) -> str:
    """File names that exist only beside the recipe are made absolute."""
    from engine.recipes import FILE_SETTINGS

    if flag not in FILE_SETTINGS:
        return text
    names = [name.strip() for name in text.split(",")]
    return ",".join(str(folder / n) if n and not os.path.exists(n) and os.path.exists(folder / n) else n for n in names)


def command(draft: Draft, folder: Path) -> str:
    """The command that does the same."""
    words = ["molt-tui", "relaunch", draft.parent] if draft.parent else ["molt-tui", "launch", draft.recipe]
    words += ["--on", "slurm"] if draft.on == "slurm" else ["--on", "local"] if draft.parent else []
    pairs = (("--name", draft.name), ("--group", draft.group), ("--seeds", "" if draft.seeds == "1" else draft.seeds),
             ("--random", draft.samples if draft.sweeps else ""))  # fmt: skip
    words += [word for flag, text in pairs if text.strip() for word in (flag, text.strip())]
    words += [word for flag, text in draft.sweeps.items() for word in ("--sweep", f"{flag}={text}")]
    for flag, text in draft.changes.items():
        values = _entries(flag, _anchored(flag, text, folder))
        # A value that begins with a dash would be read as the next flag.
        one = len(values) == 1 and not values[0].startswith("-")
        words += [f"--{flag}", *values] if one else [f"--{flag}={value}" for value in values]
    return shlex.join(words)
