"""What a launch form holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Draft:
    """A launch as typed. `changes` and `sweeps`: flag -> text; `parent`: id of the run whose settings it starts from (then
    `recipe` is that run's, for show); `seeds` and `samples` may be anything that a person types."""

    recipe: str
    on: str = "local"
    changes: Mapping[str, str] = field(default_factory=dict)
    sweeps: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    group: str = ""
    seeds: str = "1"
    samples: str = ""
    parent: str = ""

    def content(self) -> dict[str, Any]:
        """What makes two launches the same."""
        return {**vars(self), "changes": dict(self.changes), "sweeps": dict(self.sweeps)}
