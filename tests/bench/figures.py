"""How a bench prints a figure: one JSON line {name, value, unit}."""

from __future__ import annotations

import json


def report(name: str, value: float, unit: str) -> None:
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit}), flush=True)
