"""One line per run: what the Runs screen shows of it and what filters look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from molt_tui.filters import ACTIVE

if TYPE_CHECKING:
    from molt_tui.verdict import Verdict


@dataclass(frozen=True)
class RunLine:
    """One run as lists show it; all text is clean. `age_s`: since the run's own writers last said something, as of
    `as_of` on this reader's clock (None: the age stands still); `verdict`: how an active run fares; `note`: the newest one."""

    id: str
    name: str
    state: str
    detail: str = ""
    step: int | None = None
    max_steps: int | None = None
    version: int | None = None
    attempts: int = 0
    reward: float | None = None
    age_s: float | None = None
    created: float = 0.0
    group: str | None = None
    tags: tuple[str, ...] = ()
    recipe: str = ""
    job_id: str | None = None
    host: str = ""
    last_checkpoint: int | None = None
    note: str = ""
    verdict: Verdict | None = None
    as_of: float | None = None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def alarming(self) -> bool:
        """Whether it is at work and a person should look at it."""
        return self.verdict is not None and self.verdict.alarming

    @property
    def alert(self) -> str:
        """The verdict's rule and words, for filters."""
        return f"{self.verdict.rule} {self.verdict.text}" if self.verdict is not None else ""

    def age(self, now: float) -> float | None:
        if self.age_s is None or self.as_of is None:
            return self.age_s
        return max(0.0, self.age_s + now - self.as_of)
