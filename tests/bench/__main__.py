"""`python -m tests.bench [NAME ...]`: run the benches, then say which figures miss their goals. Exit code 1 if any does.

Each bench prints one JSON line per figure; goals.toml holds what is asked of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHES = ("__main__", "__init__", "figures")


def benches() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHES and "def main(" in path.read_text())


def run(name: str) -> dict[str, float]:
    """The figures of one bench, printed as they come. RuntimeError when it fails."""
    command = [sys.executable, "-m", f"tests.bench.{name}"]
    found: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            figure = json.loads(line)
            found[figure["name"]] = figure["value"]
    if process.returncode:
        raise RuntimeError(f"bench {name} ended with {process.returncode}")
    return found


def missed(figures: Mapping[str, float], goals: Mapping[str, Mapping[str, float]], names: list[str]) -> list[str]:
    """Goals of these benches that are not reached or were not measured, in words."""
    words = []
    for name, goal in goals.items():
        if name.partition("/")[0] not in names:
            continue
        value = figures.get(name)
        if value is None:
            words.append(f"{name}: not measured")
        elif value > goal.get("at_most", value) or value < goal.get("at_least", value):
            asked = ", ".join(f"{word.replace('_', ' ')} {bound:g}" for word, bound in goal.items())
            words.append(f"{name}: {value:g}, asked {asked}")
    return words


def main() -> int:
    names = sys.argv[1:] or benches()
    unknown = sorted(set(names) - set(benches()))
    if unknown:
        print(f"no bench named {', '.join(unknown)}; there are: {', '.join(benches())}", file=sys.stderr)
        return 2
    figures: dict[str, float] = {}
    failed = []
    for name in names:
        try:
            figures |= run(name)
        except RuntimeError as error:
            failed.append(str(error))
    failed += missed(figures, tomllib.loads((HERE / "goals.toml").read_text()), names)
    for line in failed:
        print(f"MISSED {line}", file=sys.stderr)
    print(f"{len(figures)} figures, {len(failed)} missed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
