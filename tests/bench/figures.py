"""How a bench prints a figure, one JSON line {name, value, unit}, and how its sections take turns."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def report(name: str, value: float, unit: str) -> None:
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit}), flush=True)


def wait_for_turn() -> None:
    """Until the bench that started this process lets it measure; at once where none did."""
    turn = os.environ.get("BENCH_TURN")
    while turn and not Path(turn).exists():
        time.sleep(0.1)
