"""Every key binding by id: what can be remapped in tui.toml, and what `molt-tui keys` lists."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

import molt_tui.tui
from molt_tui.errors import Refused
from molt_tui.tui.preferences import FILE, key_names
from molt_tui.tui.screens.help import key_name

PACKAGE = "molt_tui.tui"


@dataclass(frozen=True)
class Key:
    id: str
    keys: str
    what: str


def all_keys() -> list[Key]:
    """The default binding of every id of this app, by id."""
    found: dict[str, Key] = {}
    for owner in _all_owners():
        for binding in owner.__dict__.get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id:
                keys = " ".join(key_name(key.strip()) for key in binding.key.split(","))
                found.setdefault(binding.id, Key(binding.id, keys, binding.tooltip or binding.description))
    return sorted(found.values(), key=lambda key: key.id)


def check_clashes(chosen: Mapping[str, str]) -> None:
    """No key that is chosen is another binding's where both act. What the defaults share is meant so. Raises Refused."""
    for screen, bindings in _together():
        default = {name: set(key_names(binding.key)) for name, binding in bindings.items()}
        now = {name: set(key_names(chosen[name])) if name in chosen else keys for name, keys in default.items()}
        for one in chosen.keys() & now.keys():
            for other in now.keys() - {one}:
                for key in sorted((now[one] & now[other]) - (default[one] & default[other])):
                    where, shown = screen.TITLE or screen.__name__, key_name(key)
                    raise Refused(f"{FILE}: {one}: on the screen {where} {shown!r} is the key of {other}; choose another, or give"
                                  f" {other} one of its own")  # fmt: skip


def _together() -> Iterator[tuple[type[Screen], dict[str, Binding]]]:
    """Every screen with the bindings (by id) that act at the same time: a widget's, its own and the app's."""
    owners = list(_all_owners())
    everywhere = {name: binding for owner in owners if issubclass(owner, App) for name, binding in _bindings(owner).items()}
    for screen in (owner for owner in owners if issubclass(owner, Screen)):
        own = _bindings(screen) | ({} if issubclass(screen, ModalScreen) else everywhere)
        yield screen, own
        for widget in _widgets(screen):
            yield screen, _bindings(widget) | own


def _widgets(screen: type[Screen]) -> Iterator[type[Widget]]:
    """What a screen is composed of."""
    for base in screen.__mro__:
        if "compose" in base.__dict__ and base.__module__.startswith(PACKAGE):
            known = vars(sys.modules[base.__module__])
            for name in base.__dict__["compose"].__code__.co_names:
                if isinstance(found := known.get(name), type) and issubclass(found, Widget):
                    yield found


def _bindings(owner: type) -> dict[str, Binding]:
    found = [binding for base in owner.__mro__ for binding in base.__dict__.get("BINDINGS", ())]
    return {binding.id: binding for binding in found if isinstance(binding, Binding) and binding.id}


def _all_owners() -> Iterator[type[DOMNode]]:
    for module in pkgutil.walk_packages(molt_tui.tui.__path__, PACKAGE + "."):
        importlib.import_module(module.name)
    return _owners(DOMNode)


def _owners(parent: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith(PACKAGE):
            yield child
        yield from _owners(child)
