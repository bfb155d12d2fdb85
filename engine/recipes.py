"""Recipes: TOML files, shipped in the `recipes` package or given by path, and what becomes of one with overrides."""

import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.datasets import GYM_PREFIX
from engine.flags import COMMA_TEXTS, Problem, parse_overrides, read_toml, resolve, suggest
from engine.validate import validate

# Settings that name files: relative ones are meant from the recipe's folder, on the command line from the working directory.
FILE_SETTINGS = (
    "train.agent_path",
    "algo.advantage.estimator_path",
    "data.prompt_dataset",
    "eval.dataset",
    "actor.model_name_or_path",
    "ref.model_name_or_path",
    "ckpt.path",
)


@dataclass(frozen=True)
class Recipe:
    """A recipe file. `raw` is its TOML with file names made absolute; `problems` tell why it could not be read."""

    name: str
    path: Path
    raw: dict[str, Any]
    problems: tuple[Problem, ...] = ()


def shipped_folder() -> Path | None:
    """Where the recipes of this installation lie; None when there are none."""
    spec = importlib.util.find_spec("recipes")
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def shipped_names() -> dict[str, Path]:
    """Name -> file. recipes/demo.toml is `demo`; recipes/<task>/x.toml is `x`, and `<task>/x` where two tasks have one."""
    folder = shipped_folder()
    files = sorted(folder.rglob("*.toml")) if folder else []
    stems = [file.stem for file in files]
    full = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    return {stem if stems.count(stem) == 1 else long: file for stem, long, file in zip(stems, full, files)}


def find_recipe(name: str) -> tuple[Recipe | None, list[Problem]]:
    """A shipped recipe by name, or a TOML file by path; the problems say why there is none."""
    shipped = shipped_names()
    folder = shipped_folder()
    for candidate in (shipped.get(name), folder / f"{name}.toml" if folder else None, Path(os.path.expanduser(name))):
        if candidate is not None and os.path.isfile(candidate):
            recipe = _read(name, candidate.resolve())
            return recipe, list(recipe.problems)
    if name.endswith(".toml") or "/" in name:
        return None, [Problem("", f"recipe {name}: there is no such file")]
    near = suggest(name, shipped)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(shipped) or 'none installed'}"
    return None, [Problem("", f"unknown recipe '{name}'{hint}")]


def load(
    name: str, argv: Iterable[str], base: Mapping[str, Any] | None = None
) -> tuple[Recipe | None, Config | None, list[Problem]]:
    """Find a recipe, apply dotted flags, validate. The Config is there only when there is no problem.

    `base` holds sections with a site's defaults, which the recipe's own settings replace one by one.
    """
    overrides, problems = parse_overrides(argv)
    recipe, more = find_recipe(name)
    problems += more
    raw = recipe.raw if recipe else {}
    for section, table in (base or {}).items():
        own = raw.get(section, {})
        raw = {**raw, section: {**table, **own} if isinstance(own, Mapping) else own}
    config, wrong = resolve(raw, {path: _anchored_words(path, words) for path, words in overrides.items()})
    problems += wrong
    if recipe is not None and not recipe.problems:
        # A value that could not be read is its default in `config`: only the first complaint about a flag counts.
        blamed = {problem.flag for problem in problems}
        problems += [problem for problem in validate(config) if problem.flag not in blamed]
    return recipe, None if problems else config, problems


def _read(name: str, path: Path) -> Recipe:
    raw, problems = read_toml(path)
    return Recipe(name, path, _anchored_table(raw, path.parent, ""), tuple(problems))


def _anchored_table(table: Mapping[str, Any], folder: Path, prefix: str) -> dict[str, Any]:
    anchored: dict[str, Any] = {}
    for key, value in table.items():
        path = prefix + key
        if isinstance(value, Mapping):
            anchored[key] = _anchored_table(value, folder, f"{path}.")
        elif isinstance(value, list):
            anchored[key] = [_anchored(item, path, folder) for item in value]
        else:
            anchored[key] = _anchored(value, path, folder)
    return anchored


def _anchored_words(path: str, words: list[str]) -> list[str]:
    """Words of the command line, whose file names are meant from the working directory."""
    parts = [part.strip() for word in words for part in word.split(",")] if path in COMMA_TEXTS else words
    return [_anchored(part, path, Path.cwd()) for part in parts]


def _anchored(value: Any, path: str, folder: Path) -> Any:
    """A file name made absolute; other settings, and names that are no files (generated data, hub and built-in models), stay."""
    if path not in FILE_SETTINGS or not isinstance(value, str) or not value or value.startswith(GYM_PREFIX):
        return value
    here = folder / os.path.expanduser(value)
    if path.endswith("model_name_or_path"):
        return str(here) if os.path.isdir(here) else value
    return value if path == "ckpt.path" and value == "none" else str(here)
