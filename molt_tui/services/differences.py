"""What a launch would do differently from a past run: settings, agent code, batch script. Pure but for reading the files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.wire import read_record

if TYPE_CHECKING:
    from engine.config import Config

PLACEHOLDER = "RUN"
# Shown by its code, not by the place that it was copied to.
AGENT = "train.agent_path"


@dataclass(frozen=True)
class Change:
    """One setting: values of the past run and of the launch, typed as in the configuration."""

    flag: str
    before: Any
    after: Any


def settings(before: Config, after: Config) -> list[Change]:
    """Settings that differ, in the order of the tree; the agent's path is left out."""
    from engine.flags import flatten

    old = dict(flatten(before))
    return [Change(flag, old[flag], value) for flag, value in flatten(after) if flag != AGENT and old[flag] != value]


def agent_code(before: Path, after: Path) -> str:
    """How an agent's code differs, as `agent.py: 3 lines added, 1 removed`; empty when it is the same."""
    try:
        old, new = (read_record(path).decode(errors="replace").splitlines() for path in (before, after))
    except OSError as error:
        return f"{after.name}: cannot be compared ({error.strerror})"
    if old == new:
        return ""
    changed = [op[1:] for op in difflib.SequenceMatcher(None, old, new).get_opcodes() if op[0] != "equal"]
    added, removed = sum(d - c for _, _, c, d in changed), sum(b - a for a, b, _, _ in changed)
    return f"{after.name}: {added} lines added, {removed} removed"


def past_script(run: Path, root: Path) -> list[str]:
    """The batch script in a past run's directory as it would read for the next one; empty for a local run."""
    try:
        text = read_record(run / "slurm" / "batch.sh").decode(errors="replace")
    except OSError:
        return []
    text = text.replace(str(run), str(root / PLACEHOLDER)).replace(run.name, PLACEHOLDER)
    return re.sub(rf"(molt:{PLACEHOLDER})\.\d+", r"\1.1", text).splitlines()


def lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """A unified diff without its file names; empty when nothing differs."""
    return list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
