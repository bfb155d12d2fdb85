"""Writes docs/what-to-press.md from the rules and the key bindings: `python -m tests.make_what_to_press`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from textual.binding import Binding
from textual.dom import DOMNode

import molt_tui.tui
from molt_tui.facts import Facts
from molt_tui.scenarios.archive import load, names
from molt_tui.tui.glyphs import MARK
from molt_tui.tui.screens.help import key_name
from molt_tui.verdict import RULES, Rule

PAGE = Path(__file__).parents[1] / "docs/what-to-press.md"
HEAD = """\
# What to press when

The first line of a run's dashboard says what the run is doing; the second says what to press or change. The same words are in
`molt-tui show RUN`, and what needs a person is in `alerts` of `molt-tui runs --json`. This page lists all of them, most urgent
first. It is made from `molt_tui/verdict.py` and the key bindings; `molt-tui demo --scenario NAME` plays those that name
a scenario.

"""


def page() -> str:
    return HEAD + "\n".join([*_rules(), *_keys()]) + "\n"


def _rules() -> Iterator[str]:
    scenarios: dict[str, list[str]] = {}
    for name in names():
        scenarios.setdefault(load(name).verdict, []).append(f"`{name}`")
    titles = {"critical": "Something is broken", "warning": "Something needs a look", "info": "For your information",
              "good": "Nothing to do"}  # fmt: skip
    for level, title in titles.items():
        yield f"## {MARK[level]} {title}\n"
        for rule in (r for r in RULES if r.level == level):
            yield f"### {rule.name}\n"
            yield f"{_safe(rule.about)}.\n"
            if _action(rule):
                yield f"- **Do**: {_safe(_action(rule))}.{_on_cores(rule)}"
            yield f"- Healthy: {_safe(rule.healthy)}."
            if rule.name in scenarios:
                yield f"- Scenario: {', '.join(scenarios[rule.name])}."
            yield ""


def _action(rule: Rule) -> str:
    return rule.action if isinstance(rule.action, str) else rule.action(Facts("running", step=60, last_checkpoint=50))


def _on_cores(rule: Rule) -> str:
    """What to do on one machine without GPUs, where that is something else."""
    alone = (
        None
        if isinstance(rule.action, str)
        else rule.action(Facts("running", step=60, metrics={"host/cpu/mean": 0.9}, last_checkpoint=50))
    )
    return "" if alone in (None, _action(rule)) else f" On one machine without GPUs: {_safe(alone)}."


def _keys() -> Iterator[str]:
    yield "## Keys\n"
    yield "Every key can be changed by its id; `?` shows those that act where you are.\n"
    yield "| where | key | what it does | id |"
    yield "|---|---|---|---|"
    for where, binding in bindings():
        keys = " ".join(f"`{key_name(key)}`" for key in binding.key.split(","))
        yield f"| {where} | {keys} | {binding.description} | `{binding.id}` |"


def bindings() -> list[tuple[str, Binding]]:
    """(where, binding) of every class of the app, each id once, with all places that have it."""
    places: dict[str, list[str]] = {}
    known: dict[str, Binding] = {}
    for module in sorted(m.name for m in pkgutil.walk_packages(molt_tui.tui.__path__, "molt_tui.tui.")):
        for cls in vars(importlib.import_module(module)).values():
            if isinstance(cls, type) and issubclass(cls, DOMNode) and cls.__module__ == module:
                for binding in vars(cls).get("BINDINGS", []):
                    if isinstance(binding, Binding) and binding.id:
                        known.setdefault(binding.id, binding)
                        places.setdefault(binding.id, []).append(_where(cls))
    found = [(", ".join(sorted(set(where))), known[id]) for id, where in places.items()]
    return sorted(found, key=lambda item: (item[0], item[1].id or ""))


def _where(cls: type) -> str:
    title = getattr(cls, "TITLE", None)
    return title if isinstance(title, str) and title else cls.__name__


def _safe(text: str) -> str:
    return text.replace("<", r"\<").replace("*", r"\*").rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page())
