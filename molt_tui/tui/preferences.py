"""What a person sets once: tui.toml in molt-tui's home. A mistake there is one line that says what to change."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from molt_tui.errors import Refused
from molt_tui.tui.themes import theme_names

FILE = "tui.toml"
REFRESH_RANGE_S = (0.5, 60.0)


@dataclass(frozen=True)
class Preferences:
    """`refresh_s` None: by the terminal (slower over SSH). `keys`: binding id to key or keys, comma-separated."""

    theme: str = "dark"
    ascii: bool = False
    read_only: bool = False
    refresh_s: float | None = None
    keys: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, **options: Any) -> Preferences:
        """Command-line options win; those that were not given are None."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})


def load(path: Path) -> Preferences:
    """Read tui.toml; defaults without one. Raises Refused."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Preferences()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise Refused(f"{path} cannot be read ({why}); repair or remove it") from error
    import tomllib

    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(f"{path} is not valid TOML: {error}") from error
    try:
        return parse(found)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from error


def parse(values: Mapping[str, Any]) -> Preferences:
    """Preferences from a mapping; ValueError says what to change."""
    known = [f.name for f in fields(Preferences)]
    for name in values:
        if name not in known:
            raise ValueError(f"unknown setting {name!r}{_meant(name, known)}; there are: {', '.join(known)}")
    chosen = dict(values)
    theme = chosen.get("theme", "dark")
    if theme not in theme_names():
        raise ValueError(f"theme {theme!r} does not exist{_meant(str(theme), theme_names())}; try dark, light, mono or terminal")
    for name in ("ascii", "read_only"):
        if not isinstance(chosen.get(name, False), bool):
            raise ValueError(f"{name} must be true or false")
    low, high = REFRESH_RANGE_S
    refresh = chosen.get("refresh_s")
    if refresh is not None and (isinstance(refresh, bool) or not isinstance(refresh, int | float) or not low <= refresh <= high):
        raise ValueError(f"refresh_s must be a number of seconds from {low:g} to {high:g}")
    keys = chosen.get("keys", {})
    if not isinstance(keys, Mapping) or not all(isinstance(key, str) and key.strip(" ,") for key in keys.values()):
        raise ValueError('[keys] maps binding ids to keys, such as "run.log" = "o"')
    return Preferences(**chosen)


def character_of(key: str) -> str | None:
    """What a key types, by Textual's name of it; of those that it calls otherwise than Unicode, it does not know that itself."""
    from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

    names = {short: long for long, short in KEY_NAME_REPLACEMENTS.items()}
    return key_to_character(names.get(key, key))


def key_names(chosen: str) -> list[str]:
    """The comma-separated keys by the names that Textual has for them: `]` is right_square_bracket."""
    from textual.binding import Binding

    keys = ",".join(filter(None, map(str.strip, chosen.split(","))))
    return [binding.key for binding in Binding.make_bindings([Binding(keys, "")])]


def check_keys(keys: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Every remapped id exists (`known`: id to default keys), and so does every key. Raises Refused."""
    from textual.keys import Keys

    named = [key.value for key in Keys]
    for name, chosen in keys.items():
        if name not in known:
            raise Refused(f"{FILE}: no key binding has the id {name!r}{_meant(name, list(known))}; `molt-tui keys` lists them")
        for key in filter(None, map(str.strip, chosen.split(","))):
            last = key[:-1].rpartition("+")[2] + key[-1]
            if len(last) > 1 and last not in named and not (character_of(last) or "\0").isprintable():
                raise Refused(f"{FILE}: {name}: there is no key {key!r}{_meant(key, named)}")


def keep_theme(path: Path, name: str) -> None:
    """Remember a theme chosen on the screen; the rest of the file stays as it was. A disk that refuses costs only the memory."""
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text("utf-8") if path.exists() else ""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(with_theme(text, name), "utf-8")
        temporary.replace(path)


def with_theme(text: str, name: str) -> str:
    """The TOML text with this theme, in place of the top-level one or as a new first line."""
    head, bracket, tables = re.match(r"(?s)(.*?)((?:^|(?<=\n))[ \t]*\[|\Z)(.*)", text).groups()  # type: ignore[union-attr]
    line = f'theme = "{name}"'
    head, count = re.subn(r"(?m)^[ \t]*theme[ \t]*=.*$", line, head, count=1)
    return (head if count else f"{line}\n{head}") + bracket + tables


def _meant(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f", did you mean {close[0]!r}?" if close else ""
