"""Dotted flags and TOML to the Config tree and back. Every problem is collected; nothing here raises for bad input."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from engine.config import LIVE_KNOBS, Config
from engine.wire import read_record

Overrides = dict[str, list[str]]
Kind = Literal["bool", "int", "float", "str"]
# Lists of texts that may be given as one word with commas; in the others (commands, mounts) a comma is a comma.
COMMA_TEXTS = ("data.prompt_dataset", "eval.dataset")
BOOL_WORDS = ("false", "true", "")  # a bare flag means true
KINDS: dict[str, Kind] = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}  # by JSON schema type
NOUNS = {"int": ("an integer", "integers"), "float": ("a number", "numbers"), "str": ("text", "texts")}


@dataclass(frozen=True)
class Problem:
    """What is wrong with one flag (or key of a recipe) and what to change; `flag` is empty when none is to blame."""

    flag: str
    message: str

    def __str__(self) -> str:
        return f"--{self.flag}: {self.message}" if self.flag else self.message


@dataclass(frozen=True)
class FieldInfo:
    """One flag: what the command line, the launch form and the docs need to know.

    `type` is the readable form ("an integer >= 1 or none"). `length` is None for a single value, 0 for a list of any
    length, else the exact number of values.
    """

    path: str
    kind: Kind
    type: str
    choices: tuple[str, ...]
    default: Any
    help: str
    live: bool
    optional: bool
    length: int | None


@cache
def flag_table() -> dict[str, FieldInfo]:
    """Every flag by its path, in the order of the tree."""
    return {info.path: info for info in _describe(Config(), "", Config.model_json_schema()["$defs"])}


def _describe(section: BaseModel, prefix: str, sections: Mapping[str, Any]) -> Iterator[FieldInfo]:
    for name in type(section).model_fields:
        path, value = prefix + name, getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _describe(value, f"{path}.", sections)
            continue
        field = sections[type(section).__name__]["properties"][name]
        kinds = field.get("anyOf", [field])
        single = array = next(schema for schema in kinds if schema["type"] != "null")
        length = None
        if array["type"] == "array":
            single, length = array.get("items") or array["prefixItems"][0], array.get("maxItems", 0)
        choices = tuple(single.get("enum", ()))
        kind, optional = KINDS[single["type"]], len(kinds) > 1
        text = _type_text(kind, choices, single, length) + (" or none" if optional else "")
        yield FieldInfo(path, kind, text, choices, value, field["description"], path in LIVE_KNOBS, optional, length)


def _type_text(kind: Kind, choices: tuple[str, ...], schema: Mapping[str, Any], length: int | None) -> str:
    if choices:
        return "one of " + ", ".join(choices)
    if kind == "bool":
        return "true or false"
    one, many = NOUNS[kind]
    text = one if length is None else f"a list of {many}" if length == 0 else f"{length} {many}"
    if "minimum" in schema and "maximum" in schema:
        return f"{text} from {schema['minimum']} to {schema['maximum']}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return f"{text} {' and '.join(f'{sign} {schema[key]}' for key, sign in signs.items() if key in schema)}".rstrip()


def parse_overrides(argv: Iterable[str]) -> tuple[Overrides, list[Problem]]:
    """Split `--a.b 1 2 --a.c=3 --a.d` into {path: words}. A repeated flag adds to a list of texts, else replaces."""
    overrides: Overrides = {}
    problems: list[Problem] = []
    words: list[str] | None = None
    for word in argv:
        if not word.startswith("--"):
            if words is None:
                problems.append(Problem("", f"unexpected '{word}': settings are given as --section.name value"))
            else:
                words.append(word)
            continue
        path, equals, value = word[2:].partition("=")
        info = flag_table().get(path)
        if info is None or info.kind != "str" or info.length != 0:
            overrides.pop(path, None)
        words = overrides.setdefault(path, [])
        if equals:
            words.append(value)
    return overrides, problems


def resolve(recipe: Mapping[str, Any], overrides: Overrides) -> tuple[Config, list[Problem]]:
    """Merge a recipe's TOML and the overrides over the defaults.

    Returns the tree without the values that are wrong, and every problem; use the tree only when there is none.
    """
    given = dict(_leaves(recipe, ""))
    problems = [_unknown(path, "key in the recipe") for path in given if path not in flag_table()]
    values = {path: value for path, value in given.items() if path in flag_table()}
    for path, words in overrides.items():
        info = flag_table().get(path)
        if info is None:
            problems.append(_unknown(path, "flag"))
            continue
        try:
            values[path] = _convert(info, words)
        except ValueError:
            values.pop(path, None)
            problems.append(_wrong(info, " ".join(words) or None))
    config, wrong = _build(values)
    return config, problems + wrong


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of a TOML document; arrays become tuples, as the tree wants them."""
    for name, value in table.items():
        path = prefix + name
        if isinstance(value, Mapping) and path not in flag_table():
            yield from _leaves(value, path + ".")
        else:
            yield path, tuple(value) if isinstance(value, list) else value


def _convert(info: FieldInfo, words: list[str]) -> Any:
    """The typed value of a flag's words; ValueError when they do not fit or are not Unicode."""
    "".join(words).encode()
    if info.optional and words == ["none"]:
        return None
    if info.kind == "bool":
        return BOOL_WORDS.index(" ".join(words).lower()) > 0
    read = {"int": int, "float": float, "str": str}[info.kind]
    if info.length is None:
        (word,) = words
        return read(word)
    if not words:
        raise ValueError("no value")
    splits = info.kind != "str" or info.path in COMMA_TEXTS
    parts = [part.strip() for word in words for part in (word.split(",") if splits else [word])]
    return tuple(read(part) for part in parts if part)


def _build(values: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Validate {path: value}; wrong values are reported and left out."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    try:
        return Config.model_validate(nested, strict=True), []
    except ValidationError as error:
        bad = {_field_of(item["loc"]) for item in error.errors(include_url=False)}
    config, _ = _build({path: value for path, value in values.items() if path not in bad})
    return config, [_wrong(flag_table()[path], values[path]) for path in sorted(bad)]


def _field_of(location: tuple[Any, ...]) -> str:
    """The flag that an error belongs to; the location may go on into a list or a union."""
    while ".".join(map(str, location)) not in flag_table():
        location = location[:-1]
    return ".".join(location)


def _wrong(info: FieldInfo, value: Any) -> Problem:
    near = _close(str(value), info.choices) if info.choices else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return Problem(info.path, f"expects {info.type}, got {_shown(value)}{hint}")


def _shown(value: Any) -> str:
    if isinstance(value, (bool, int, float, tuple)):
        return str(list(value) if isinstance(value, tuple) else value)
    return "nothing" if value is None else "a table" if isinstance(value, Mapping) else repr(value)


def _unknown(path: str, what: str) -> Problem:
    inside = [known for known in flag_table() if known.startswith(path + ".")]
    if inside:
        return Problem(path, f"is a section, not a value; its settings are {', '.join(inside[:3])}, ...")
    near = suggest(path, tuple(flag_table()))
    return Problem(path, f"unknown {what}" + (f"; did you mean {' or '.join(near)}?" if near else "; `flags` lists all"))


def suggest(path: str, known: Iterable[str]) -> list[str]:
    """At most three of the known dotted names that `path` may have meant: same last part first, then similar ones."""
    path = path.replace("-", "_")
    leaf = path.rsplit(".", 1)[-1]
    leaves = {name: name.rsplit(".", 1)[-1] for name in known}
    same = [name for name, end in leaves.items() if end == leaf]
    close = _close(leaf, leaves.values())
    alike = [name for name, end in leaves.items() if end in close or (len(leaf) > 3 and end.startswith(leaf))]
    return list(dict.fromkeys([*same, *_close(path, leaves), *alike]))[:3]


def _close(word: str, known: Iterable[str]) -> list[str]:
    from difflib import get_close_matches  # only a wrong flag needs it

    return get_close_matches(word, list(known), n=3, cutoff=0.75)


def read_toml(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """A TOML file as a dict; syntax errors are reported with their line."""
    import tomllib

    try:
        return tomllib.loads(read_record(path).decode()), []
    except OSError as error:
        return {}, [Problem("", f"{path}: cannot be read ({error.strerror})")]
    except UnicodeDecodeError:
        return {}, [Problem("", f"{path}: is not UTF-8 text")]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return {}, [Problem("", f"{path}: {error}")]


def load_run_toml(path: Path) -> Config:
    """The configuration of an existing run; ValueError (one line) when the file is damaged."""
    raw, problems = read_toml(path)
    config, more = resolve(raw, {})
    if problems or more:
        raise ValueError(f"{path}: " + "; ".join(map(str, problems + more)))
    return config


def flatten(config: Config) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every field, in the order of the tree."""
    return ((path, attrgetter(path)(config)) for path in flag_table())


def changed_fields(config: Config) -> dict[str, Any]:
    """Path -> value of every field that differs from the default."""
    return {path: value for path, value in flatten(config) if value != flag_table()[path].default}


def to_toml(config: Config) -> str:
    """The whole tree as TOML; fields that are None are left out."""
    tables: dict[str, list[str]] = {}
    for path, value in flatten(config):
        if value is not None:
            table, _, name = path.rpartition(".")
            # JSON values are TOML values but for DEL in a text, which TOML wants escaped.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            tables.setdefault(table, []).append(f"{name} = {text}\n")
    return "\n".join(f"[{table}]\n{''.join(lines)}" for table, lines in tables.items())
