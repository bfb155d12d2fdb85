"""A comparison as JSON, CSV or Markdown text. Pure."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from molt_tui.bands import Spread
from molt_tui.comparison import Comparison, Several, short
from molt_tui.errors import MoltError, Refused
from molt_tui.services.tables import new_text_file
from molt_tui.text import clean

FORMATS = {".csv": "csv", ".json": "json", ".md": "markdown"}


def as_json(found: Comparison) -> dict[str, Any]:
    """JSON-safe: NaN and infinities as strings; a group's number as {mean, sd, n, lost}; curves as [x, mean, sd, n]."""
    from engine.wire import to_wire

    subjects = [{"ref": s.ref, "label": s.label, "runs": list(s.run_ids)} for s in found.subjects]
    curves = [[[p.x, p.mean, p.sd, p.n] for p in curve] for curve in found.curves]
    return to_wire({
        "runs": [s.ref for s in found.subjects], "subjects": subjects, "metric": found.metric, "by": found.by,
        "settings": {name: list(map(_plain, values)) for name, values in found.settings.items()},
        "metrics": {name: list(map(_plain, values)) for name, values in found.final.items()},
        "curves": curves, "problems": list(found.problems),
    })  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"mean": value.mean, "sd": value.sd, "n": value.n, "lost": value.lost}
    return {"values": list(value.values)} if isinstance(value, Several) else value


def as_csv(found: Comparison) -> str:
    """One long table: what (setting, final or curve), name, subject, x, value, sd, n."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("what", "name", "subject", "x", "value", "sd", "n"))
    writer.writerows([_cell(value) for value in row] for row in _records(found))
    return out.getvalue()


def _records(found: Comparison) -> Iterator[tuple[Any, ...]]:
    labels = [s.label for s in found.subjects]
    for what, table in (("setting", found.settings), ("final", found.final)):
        for name, values in table.items():
            for label, value in zip(labels, values):
                if isinstance(value, Spread):
                    yield what, name, label, None, value.mean, value.sd, value.n
                elif value is not None:
                    yield what, name, label, None, short(value), None, None
    for label, curve in zip(labels, found.curves):
        for p in curve:
            yield "curve", f"{found.metric} by {found.by}", label, p.x, p.mean, p.sd, p.n


def _cell(value: Any) -> Any:
    return "" if value is None else clean(value) if isinstance(value, str) else value


def as_markdown(found: Comparison) -> str:
    """Two tables for an issue or a paper's notes: settings that differ, final metrics."""
    labels = [s.label + (f" (n={len(s.run_ids)})" if s.is_group else "") for s in found.subjects]
    parts = [_table("setting", labels, found.settings)] if found.settings else ["All settings agree."]
    return "\n\n".join([*parts, _table("metric", labels, found.final)]) + "\n"


def _table(head: str, labels: Sequence[str], rows: Any) -> str:
    lines = [[head, *labels], ["---"] * (len(labels) + 1), *([name, *map(short, values)] for name, values in rows.items())]
    return "\n".join("| " + " | ".join(clean(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_text(found: Comparison, kind: str) -> str:
    if kind == "json":
        return json.dumps(as_json(found), indent=2, allow_nan=False) + "\n"
    return as_csv(found) if kind == "csv" else as_markdown(found)


def save(found: Comparison, target: str) -> str:
    """Write to a file by its ending; returns its path. Raises Refused for an unknown ending or a file that exists."""
    path = Path(os.path.abspath(os.path.expanduser(target)))
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise Refused(f"{clean(target)}: the name must end in {', '.join(FORMATS)}")
    try:
        with new_text_file(path) as file:
            file.write(as_text(found, kind))
    except FileExistsError as error:
        raise Refused(f"{clean(path)} exists already; choose another name") from error
    except OSError as error:
        raise MoltError(f"cannot write {clean(path)}: {error.strerror}") from error
    return str(path)
