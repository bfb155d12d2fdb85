"""Every key binding by id: what can be remapped in tui.toml, and what `molt-tui keys` lists."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

from textual.binding import Binding
from textual.dom import DOMNode

import molt_tui.tui
from molt_tui.tui.screens.help import key_name

PACKAGE = "molt_tui.tui"


@dataclass(frozen=True)
class Key:
    id: str
    keys: str
    what: str


def all_keys() -> list[Key]:
    """The default binding of every id of this app, by id."""
    for module in pkgutil.walk_packages(molt_tui.tui.__path__, PACKAGE + "."):
        importlib.import_module(module.name)
    found: dict[str, Key] = {}
    for owner in _owners(DOMNode):
        for binding in owner.__dict__.get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id:
                keys = " ".join(key_name(key.strip()) for key in binding.key.split(","))
                found.setdefault(binding.id, Key(binding.id, keys, binding.tooltip or binding.description))
    return sorted(found.values(), key=lambda key: key.id)


def _owners(parent: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith(PACKAGE):
            yield child
        yield from _owners(child)
