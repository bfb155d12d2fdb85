"""Recipes as the command line and the launch form need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui.errors import NotFound, Refused
from molt_tui.services.machine import misfit

if TYPE_CHECKING:
    from engine.config import Config
    from engine.flags import Problem
    from engine.recipes import Recipe

ABOUT = ("title", "task", "model", "hardware")  # of the [recipe] table


@dataclass(frozen=True)
class RecipeLine:
    """One recipe of the list; `problems` are one line each, empty for a recipe that can run. `misfit`: what it needs that this
    machine does not have."""

    name: str
    path: Path
    title: str
    task: str
    model: str
    hardware: str
    problems: tuple[str, ...] = ()
    misfit: str = ""


def list_recipes(*, check: bool = False) -> list[RecipeLine]:
    """Shipped recipes; `check` validates each."""
    from engine.recipes import find_recipe, load, shipped_names

    lines = []
    for name in shipped_names():
        recipe, problems = find_recipe(name)
        config = None
        if check:
            config, problems = load(name, [])[1:]
        if recipe is not None:
            lines.append(_line(recipe, config, problems))
    return lines


def check_recipe(name: str) -> RecipeLine:
    """One recipe, by shipped name or path, validated. Raises NotFound."""
    from engine.recipes import find_recipe, load

    recipe, problems = find_recipe(name)
    if recipe is None:
        raise NotFound("\n".join(map(str, problems)))
    _, config, problems = load(name, [])
    return _line(recipe, config, problems)


def _line(recipe: Recipe, config: Config | None, problems: Sequence[Problem]) -> RecipeLine:
    table = recipe.raw.get("recipe")
    about = {field: str(table.get(field, "") if isinstance(table, dict) else "") for field in ABOUT}
    missing = misfit(config) if config is not None else None
    return RecipeLine(recipe.name, recipe.path, **about, problems=tuple(map(str, problems)),
                      misfit=missing.message if missing else "")  # fmt: skip


def settings_of(name: str) -> dict[str, Any]:
    """Flag -> value of what a recipe changes. Raises NotFound, or Refused when it cannot be read."""
    from engine.flags import changed_fields
    from engine.recipes import load

    line = check_recipe(name)
    config = load(name, [])[1]
    if config is None:
        raise Refused("\n".join(line.problems))
    return changed_fields(config)
