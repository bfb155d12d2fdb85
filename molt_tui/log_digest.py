"""A log for people: the project's own lines and errors as they came; what vLLM, Ray and others repeat, folded. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "own", "noise"]
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[A-Z]\w*(?:Error|Exception)\b|died|Killed|Segmentation fault|out of memory)", re.I
)
_NO_ERROR = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG)\b")
# Lines of the libraries below us: the prefix of a Ray actor; a level with a date or a source file; progress bars and advice.
_ACTOR = re.compile(r"^(?:\([\w.: -]+ (?:pid|ip)=[^)]*\)\s*)+")
_LIBRARY = re.compile(
    r"^(?:(?:INFO|WARNING|DEBUG|WARN)\s+\d|[IWD]\d{4} |\[[IWDE]\d{4} |\[rank\d|\d{4}-\d\d-\d\d[ T][\d:,.]+\s+(?:INFO|WARN))"
)
_ADVICE = re.compile(
    r"FutureWarning|DeprecationWarning|UserWarning|warnings\.warn|SIGTERM handler is not set|Token authentication"
    r"|it/s\]|s/it\]|\d%\s*(?:\||Completed)|Triton not available"
)
_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(?:[.:,]\d+)*")


@dataclass(frozen=True)
class LogLine:
    """`count` lines that differ in nothing but numbers, shown as the last of them."""

    kind: Kind
    text: str
    count: int = 1


def kind_of(text: str) -> Kind:
    """What a line is: an error of anybody, a line of ours, or a library's."""
    body = _ACTOR.sub("", text)
    if not body.strip():
        return "noise"
    library = bool(_LIBRARY.match(body) or _ADVICE.search(body))
    if _ERROR.search(body) and not (library and _NO_ERROR.search(body)):
        return "error"
    return "noise" if library else "own"


def digest(lines: Sequence[str], *, everything: bool = False) -> list[LogLine]:
    """Own and error lines in their order; below a first line that counts them, or with `everything` all others, folded.

    A folded line stands where the first of its kind came. Traceback lines follow their error.
    """
    found: list[LogLine] = []
    places: dict[str, int] = {}
    hidden = 0
    for text in lines:
        kind = kind_of(text)
        if kind == "noise" and not everything:
            hidden += bool(text.strip())
            continue
        shape = _VARIABLE.sub("#", text) if kind == "noise" else ""
        if shape in places:
            place = places[shape]
            found[place] = LogLine(kind, text, found[place].count + 1)
        elif text.strip():
            places |= {shape: len(found)} if shape else {}
            found.append(LogLine(kind, text))
    head = [LogLine("noise", f"{hidden} lines of vLLM, Ray and other libraries are folded; w shows them")] if hidden else []
    return [*head, *found]
