"""Grid and random sweeps: which values of which flags, as many settings to launch. Pure.

An axis is `FLAG=VALUES`. VALUES is a list `1e-6,1e-5`; lists of lists are parted by bars, `0.9,0.95|0.9,0.99`; a range is
`0..0.2`, or `log:1e-6..1e-4` drawn evenly in the logarithm. A range of whole numbers is a list as well: `1..4`.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from molt_tui.errors import Refused
from molt_tui.text import shorten

MAX_RUNS = 64
# The same axes and number give the same draws, so that a preview shows what will be started.
DRAW_SEED = 0
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?\s*({_NUMBER})\s*\.\.\s*({_NUMBER})")


@dataclass(frozen=True)
class Axis:
    """One swept flag: listed `values` as typed, or a range from `low` to `high` that is drawn from."""

    flag: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def size(self) -> int | None:
        """Number of values; None for a range of real numbers."""
        if self.values:
            return len(self.values)
        return int(self.high - self.low) + 1 if self.whole and not self.log else None

    def listed(self) -> Sequence[str]:
        return self.values or [str(n) for n in range(int(self.low), int(self.high) + 1)]

    def draw(self, source: random.Random) -> str:
        if self.size is not None:
            return source.choice(self.values) if self.values else str(source.randint(int(self.low), int(self.high)))
        if self.log:
            value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = source.uniform(self.low, self.high)
        if self.whole:
            return str(min(max(round(value), int(self.low)), int(self.high)))
        return repr(min(max(float(f"{value:.4g}"), self.low), self.high))


def parse_axis(spec: str) -> Axis:
    """An axis from `FLAG=VALUES`. Raises Refused with what to write instead."""
    from engine.flags import flag_table, suggest

    flag, equals, text = spec.removeprefix("--").partition("=")
    flag, text = flag.strip(), text.strip()
    if not equals or not text:
        raise Refused(f"--sweep takes FLAG=VALUES, such as actor.adam.lr=1e-6,1e-5; got '{shorten(spec, 80)}'")
    known = flag_table()
    if flag not in known:
        near = suggest(flag, known)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise Refused(f"--sweep {shorten(flag, 80)}: there is no such flag{hint}")
    found = _RANGE.fullmatch(text)
    if found is not None and known[flag].kind in ("int", "float"):
        return _range(flag, found.group(1) is not None, float(found.group(2)), float(found.group(3)), known[flag].kind == "int")
    if known[flag].length is not None or "|" in text:
        parts = [part.strip() for part in text.split("|")]
    else:
        parts = [part.strip() for part in text.split(",")]
    values = tuple(dict.fromkeys(part for part in parts if part))
    if not values:
        raise Refused(f"--sweep {flag}: give at least one value")
    return Axis(flag, values)


def _range(flag: str, log: bool, low: float, high: float, whole: bool) -> Axis:
    if not math.isfinite(high - low) or low >= high:
        raise Refused(f"--sweep {flag}: a range goes from a smaller to a larger number, such as 1e-6..1e-4")
    if log and low <= 0:
        raise Refused(f"--sweep {flag}: log: needs a range above 0")
    if whole and not (low.is_integer() and high.is_integer()):
        raise Refused(f"--sweep {flag}: takes whole numbers")
    return Axis(flag, (), low, high, log, whole)


def expand(axes: Sequence[Axis], samples: int | None = None, *, runs_each: int = 1) -> list[dict[str, str]]:
    """Every combination, or `samples` of them; each maps flag to value as typed. Without axes: one empty combination.

    A larger `samples` begins with the draws of a smaller one. Raises Refused when that is more than MAX_RUNS runs.
    """
    twice = sorted({a.flag for a in axes if sum(b.flag == a.flag for b in axes) > 1})
    if twice:
        raise Refused(f"--sweep {twice[0]}: given twice; put all its values into one")
    if not axes:
        if samples is not None:
            raise Refused("--random draws from a sweep: add --sweep FLAG=VALUES")
        return [{}]
    sizes = [axis.size for axis in axes]
    endless = next((a.flag for a, size in zip(axes, sizes) if size is None), None)
    if endless is not None and samples is None:
        raise Refused(f"--sweep {endless}: a range is drawn from; add --random N, or list its values")
    total = math.prod(size for size in sizes if size is not None)
    wanted = total if samples is None else samples if endless is not None else min(samples, total)
    if wanted * runs_each > MAX_RUNS:
        many = wanted * runs_each
        raise Refused(f"this sweep is {many if many < 10**9 else 'billions of'} runs, at most {MAX_RUNS} start at once; list"
                      f" fewer values, or use --random {max(1, MAX_RUNS // runs_each)}")  # fmt: skip
    if samples is None:
        return [dict(zip([a.flag for a in axes], values)) for values in itertools.product(*(a.listed() for a in axes))]
    return _drawn(axes, wanted)


def _drawn(axes: Sequence[Axis], wanted: int) -> list[dict[str, str]]:
    """Distinct draws; what can be listed is drawn without putting back."""
    source, found, misses = random.Random(DRAW_SEED), {}, 0
    while len(found) < wanted and misses < 10_000:
        draw = {axis.flag: axis.draw(source) for axis in axes}
        before = len(found)
        found.setdefault(tuple(draw.values()), draw)
        misses += len(found) == before
    return list(found.values())


def label(combination: Mapping[str, str], flags: Iterable[str]) -> str:
    """A combination as part of a run's name: `lr=1e-6,n_samples_per_prompt=8`. `flags`: all that are swept."""
    names = list(flags)
    return ",".join(f"{_short(flag, names)}={value}" for flag, value in combination.items())


def _short(flag: str, names: Sequence[str]) -> str:
    """The shortest end of a dotted flag that no other swept flag shares."""
    parts = flag.split(".")
    for count in range(1, len(parts) + 1):
        end = ".".join(parts[-count:])
        if sum(name == end or name.endswith("." + end) for name in names) == 1:
            return end
    return flag
