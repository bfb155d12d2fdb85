"""Events of a run as sentences for people. Pure; the result is clean text on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from molt_tui.text import clean


def sentence(kind: str, data: Mapping[str, Any], step: int | None = None, version: int | None = None) -> str:
    """One event in words; a kind without words of its own is shown by its name and fields."""
    words = _WORDS.get(kind)
    text = words(data, step, version) if words else f"{kind} {_fields(data)}"
    return clean(text.strip())


def _fields(data: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in data.items())


def _phase(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    detail = data.get("detail")
    return f"{data.get('phase', '?')}" + (f": {detail}" if detail else "")


def _sync(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    pause, held = data.get("pause_seconds"), data.get("held")
    parts = [f"weights v{version} published"]
    parts += [f"engines paused {pause:.2f} s"] if isinstance(pause, (int, float)) else []
    parts += [f"{held} requests held"] if held else []
    return ", ".join(parts)


def _fault(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    detail = f": {data['detail']}" if data.get("detail") else ""
    return f"{'fatal: ' if data.get('fatal') else ''}{data.get('what', 'fault')}{detail}"


def _checkpoint(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    seconds, size = data.get("seconds"), data.get("bytes")
    parts = [f"checkpoint of step {step}" if step is not None else "checkpoint"]
    parts += [f"{seconds:.1f} s"] if isinstance(seconds, (int, float)) else []
    parts += [f"{size / 1e6:.1f} MB"] if isinstance(size, (int, float)) else []
    parts += [str(data["why"])] if data.get("why") else []
    return ", ".join(parts)


def _control(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    who = f" by {data['who']}" if data.get("who") else ""
    refused = "" if data.get("ok", True) else " refused"
    message = f": {data['message']}" if data.get("message") else ""
    return f"{data.get('name', 'command')}{who}{refused}{message}"


def _alert(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    return f"{data.get('rule', 'alert')}: {data.get('message', '')}"


def _eval(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    return f"evaluation at step {step}" if step is not None else "evaluation"


def _note(data: Mapping[str, Any], step: int | None, version: int | None) -> str:
    return f"{data.get('action', 'note')} by {data.get('who', '?')}: {data.get('text', '')}"


_WORDS = {
    "phase": _phase, "sync": _sync, "fault": _fault, "checkpoint": _checkpoint, "control": _control, "alert": _alert,
    "eval": _eval, "note": _note,
}  # fmt: skip
