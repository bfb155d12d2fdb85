"""Rows to text: CSV, JSON, JSON lines, Markdown and Parquet, as a stream."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from molt_tui.errors import Refused
from molt_tui.text import clean

Rows = Iterable[Sequence[Any]]
PARQUET_ROWS = 20_000  # rows of one row group, which is what is in memory at once


def private(path: str, flags: int) -> int:
    """An `opener` of files with data of runs: they are for their owner alone, whatever the umask lets through."""
    return os.open(path, flags, 0o600)


@contextmanager
def new_text_file(path: str | Path) -> Iterator[IO[str]]:
    """A file of its owner alone that was not there before, and is not after what could not be written to its end."""
    with open(path, "x", encoding="utf-8", errors="replace", newline="", opener=private) as file:
        try:
            yield file
            file.flush()
        except BaseException:
            os.unlink(path)
            raise


def plain(value: Any) -> Any:
    """A value for JSON: NaN and infinities travel as strings, bytes as hexadecimal text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def write_csv(columns: Sequence[str], rows: Rows, out: IO[str], *, safe: bool = False) -> None:
    """RFC 4180 with line feeds; a missing value is empty. `safe`: control characters become visible escapes, for a terminal."""
    writer = csv.writer(out, lineterminator="\n")
    if safe:
        writer.writerow(map(clean, columns))
        writer.writerows([clean(v) if isinstance(v, str) else _cell(v) for v in row] for row in rows)
    else:
        writer.writerow(columns)
        writer.writerows([v if type(v) in _AS_THEY_ARE else _cell(v) for v in row] for row in rows)


_AS_THEY_ARE = frozenset({str, int, float, type(None)})  # the csv module writes nan and inf as the wire does


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return _json(value)
    return plain(value)


def _json(value: Any) -> str:
    """Compact ASCII JSON: nothing in it can act on a terminal."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")


def write_jsonl(columns: Sequence[str], rows: Rows, out: IO[str], *, safe: bool = False) -> None:
    """One object a line."""
    for row in rows:
        out.write(_json(dict(zip(columns, map(plain, row)))) + "\n")


def write_json(columns: Sequence[str], rows: Rows, out: IO[str], *, safe: bool = False) -> None:
    """A list of objects."""
    start = "[\n  "
    for row in rows:
        out.write(start + _json(dict(zip(columns, map(plain, row)))))
        start = ",\n  "
    out.write("[]\n" if start.startswith("[") else "\n]\n")


def write_markdown(columns: Sequence[str], rows: Rows, out: IO[str], *, safe: bool = False) -> None:
    """A table of GitHub's Markdown; every cell is one clean line."""

    def line(cells: Iterable[Any]) -> str:
        shown = ("" if v is None else clean(_cell(v)).replace("\\", "\\\\").replace("|", "\\|") for v in cells)
        return "| " + " | ".join(shown) + " |\n"

    out.write(line(columns) + "|" + " --- |" * len(columns) + "\n")
    for row in rows:
        out.write(line(row))


WRITERS = {"csv": write_csv, "json": write_json, "jsonl": write_jsonl, "markdown": write_markdown}
SUFFIXES = {"csv": ".csv", "json": ".json", "jsonl": ".jsonl", "markdown": ".md", "parquet": ".parquet"}


def write_parquet(columns: Sequence[str], kinds: Sequence[str], rows: Rows, out: IO[bytes]) -> None:
    """Parquet with one type per column (`kinds`: integer, number or text). Raises Refused when pyarrow is not installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise Refused("Parquet needs pyarrow: pip install pyarrow, or take --format csv or jsonl") from error
    types = {"integer": pa.int64(), "number": pa.float64(), "text": pa.string()}
    schema = pa.schema([(name, types[kind]) for name, kind in zip(columns, kinds)])
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for block in _blocks(iter(rows)):
            arrays = [pa.array([_typed(row[i], kind) for row in block], types[kind]) for i, kind in enumerate(kinds)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _blocks(rows: Iterator[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    while block := list(islice(rows, PARQUET_ROWS)):
        yield block


def _typed(value: Any, kind: str) -> Any:
    if value is None or kind != "text":
        return value
    return (value if isinstance(value, str) else _json(value)).encode("utf-8", "replace").decode()
