"""The filter language of runs, the same on the Runs screen and in `molt-tui runs --filter`. Pure.

    state:running,paused reward:>0.5 tag:moe -group:old* age:<2d "free words"

Terms are joined by "and", comma-separated values by "or"; - or ! before a term inverts it. A text may hold * for anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

FIELD = re.compile(r"([A-Za-z_]+):")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
OPERATORS = (">=", "<=", "!=", ">", "<", "=")


class FilterError(ValueError):
    """What is wrong with a filter, in one line; `position` is the index of the character it begins at."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"character {position + 1}: {message}")
        self.position = position


class Subject(Protocol):
    """What a filter looks at; None means not reported. Durations in seconds."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def recipe(self) -> str: ...
    @property
    def tags(self) -> Sequence[str]: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def host(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def created(self) -> float: ...
    @property
    def alert(self) -> str: ...
    def age(self, now: float) -> float | None: ...


Test = Callable[[Any, float], bool]


@dataclass(frozen=True)
class Term:
    """One condition; `text` is how it was written."""

    text: str
    negated: bool
    test: Test


@dataclass(frozen=True)
class Filter:
    """All terms must hold. The empty filter holds for everything."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def matches(self, subject: Subject, now: float) -> bool:
        """`now`: seconds since the epoch on the reader's clock, for ages."""
        return all(term.test(subject, now) != term.negated for term in self.terms)

    @property
    def by_time(self) -> bool:
        """Whether the answer may change by waiting alone."""
        return any(term.text.lstrip("-!").lower().startswith(("age:", "created:")) for term in self.terms)


def parse(text: str) -> Filter:
    """The filter that a person typed. Raises FilterError."""
    return Filter(text.strip(), tuple(_term(raw, start) for raw, start in _split(text)))


def _split(text: str) -> Iterator[tuple[str, int]]:
    """(term, index) of everything between blanks outside double quotes."""
    at, end = 0, len(text)
    while at < end:
        if text[at].isspace():
            at += 1
            continue
        start, quoted = at, -1
        while at < end and (quoted >= 0 or not text[at].isspace()):
            if text[at] == '"':
                quoted = at if quoted < 0 else -1
            at += 1
        if quoted >= 0:
            raise FilterError('a " is not closed', quoted)
        yield text[start:at], start


def _term(raw: str, start: int) -> Term:
    negated = raw[0] in "-!" and len(raw) > 1
    body = raw[negated:]
    field = FIELD.match(body)
    if field is None:
        word = _unquote(body)
        if not word:
            raise FilterError("nothing between the quotes", start)
        return Term(raw, negated, _word(word.lower()))
    name, value, at = field[1].lower(), body[field.end() :], start + negated + field.end()
    if name not in FIELDS:
        raise FilterError(f'no field {field[1]!r}: {", ".join(FIELDS)}; for the text itself write "{body}"', start + negated)
    if not _unquote(value):
        raise FilterError(f"{name}: needs a value, for example {name}:{EXAMPLES[name]}", at)
    tests = [FIELDS[name](name, part, place) for part, place in _alternatives(value, at)]
    return Term(raw, negated, tests[0] if len(tests) == 1 else _any(tests))


def _alternatives(value: str, start: int) -> Iterator[tuple[str, int]]:
    """(value, index) of every part between commas outside quotes."""
    begin, quoted = 0, False
    for at, character in enumerate(value + ","):
        quoted ^= character == '"'
        if character != "," or (quoted and at < len(value)):
            continue
        if not _unquote(value[begin:at]):
            raise FilterError("a value is missing beside the comma", start + begin)
        yield value[begin:at], start + begin
        begin = at + 1


def _unquote(text: str) -> str:
    return text.replace('"', "")


def _any(tests: Sequence[Test]) -> Test:
    return lambda subject, now: any(test(subject, now) for test in tests)


def _word(word: str) -> Test:
    """A free word is part of what a row shows of the run."""

    def test(subject: Any, now: float) -> bool:
        parts = (subject.id, subject.name, subject.state, subject.group or "",
                 subject.recipe, subject.job_id or "", subject.host, subject.alert, *subject.tags)  # fmt: skip
        return any(word in part.lower() for part in parts)

    return test


def _text_test(values: Callable[[Any], Sequence[str]], whole: bool) -> Callable[[str, str, int], Test]:
    """A field with texts; `whole`: the value must be the whole text unless it holds a *."""

    def make(name: str, value: str, at: int) -> Test:
        wanted = _unquote(value).lower()
        if wanted == "none":
            return lambda subject, now: not any(values(subject))
        pattern = re.sub(r"[\[?]", lambda found: f"[{found[0]}]", wanted)  # only * is special
        pattern = pattern if whole or "*" in pattern else f"*{pattern}*"
        return lambda subject, now: any(fnmatchcase(text.lower(), pattern) for text in values(subject))

    return make


def _state(name: str, value: str, at: int) -> Test:
    wanted = _unquote(value).lower()
    known = {*STATES, "active", "ended"}
    if wanted not in known:
        close = sorted(word for word in known if word.startswith(wanted[:3]))
        raise FilterError(f"no state {wanted!r}: {', '.join(close or sorted(known))}", at)
    if wanted in ("active", "ended"):
        return lambda subject, now: (subject.state in ACTIVE) == (wanted == "active")
    return lambda subject, now: subject.state == wanted


def _number_test(value_of: Callable[[Any, float], float | None], read: Callable[[str, int], float]) -> Callable:
    """A field with a number: `>0.5`, `0.2..0.5`, `7`, `none`; a NaN equals `nan` alone and is in no range."""

    def make(name: str, value: str, at: int) -> Test:
        wanted = _unquote(value)
        if wanted.lower() == "none":
            return lambda subject, now: value_of(subject, now) is None
        low, dots, high = wanted.partition("..")
        if dots:
            bounds = read(low, at), read(high, at + len(low) + 2)
            return lambda subject, now: (v := value_of(subject, now)) is not None and bounds[0] <= v <= bounds[1]
        operator = next((o for o in OPERATORS if wanted.startswith(o)), "")
        return _compared(value_of, operator or "=", read(wanted[len(operator) :], at + len(operator)))

    return make


def _compared(value_of: Callable[[Any, float], float | None], operator: str, wanted: float) -> Test:
    def equal(value: float) -> bool:
        return value == wanted or (math.isnan(value) and math.isnan(wanted))

    compare = {"=": equal, "!=": lambda v: not equal(v), ">": lambda v: v > wanted, ">=": lambda v: v >= wanted,
               "<": lambda v: v < wanted, "<=": lambda v: v <= wanted}[operator]  # fmt: skip
    return lambda subject, now: (value := value_of(subject, now)) is not None and compare(value)


def _read_number(text: str, at: int) -> float:
    if text.lower() in ("nan", "inf", "+inf", "-inf") or NUMBER.fullmatch(text):
        return float(text)
    raise FilterError(f"expected a number like >0.5, 0.2..0.5, nan or none, got {text!r}", at)


def _read_duration(text: str, at: int) -> float:
    if text[-1:].lower() in UNITS and NUMBER.fullmatch(text[:-1]):
        return float(text[:-1]) * UNITS[text[-1].lower()]
    raise FilterError(f"expected a duration like <2d, >30m (units {' '.join(UNITS)}), got {text!r}", at)


ACTIVE = frozenset({"queued", "starting", "running", "paused", "stopping"})
STATES = ("draft", "queued", "starting", "running", "paused", "stopping", "completed", "failed", "cancelled", "preempted",
          "timeout", "lost")  # fmt: skip
FIELDS: dict[str, Callable[[str, str, int], Test]] = {
    "state": _state,
    "name": _text_test(lambda s: (s.name,), False),
    "id": _text_test(lambda s: (s.id,), False),
    "group": _text_test(lambda s: (s.group,) if s.group else (), True),
    "recipe": _text_test(lambda s: (s.recipe,) if s.recipe else (), True),
    "tag": _text_test(lambda s: s.tags, True),
    "note": _text_test(lambda s: (s.note,) if s.note else (), False),
    "alert": _text_test(lambda s: (s.alert,) if s.alert else (), False),
    "job": _text_test(lambda s: (s.job_id,) if s.job_id else (), True),
    "host": _text_test(lambda s: (s.host,) if s.host else (), False),
    "reward": _number_test(lambda s, now: s.reward, _read_number),
    "step": _number_test(lambda s, now: s.step, _read_number),
    "version": _number_test(lambda s, now: s.version, _read_number),
    "attempts": _number_test(lambda s, now: s.attempts, _read_number),
    "age": _number_test(lambda s, now: s.age(now), _read_duration),
    "created": _number_test(lambda s, now: max(0.0, now - s.created) if s.created else None, _read_duration),
}
EXAMPLES = {
    "state": "running", "name": "sums*", "id": "2026", "group": "seeds", "recipe": "demo", "tag": "moe", "note": "odd",
    "alert": "generation-bound", "job": "81234", "host": "node1", "reward": ">0.5", "step": ">=100", "version": ">3",
    "attempts": ">1", "age": "<2d", "created": "<2d",
}  # fmt: skip
HELP = (
    "state:running,paused  reward:>0.5  step:10..20  tag:moe  recipe:demo  group:seeds*  age:<2d  alert:*bound*  note:odd"
    "  -state:failed  free words; quotes keep blanks together"
)
