"""Everything that runs have recorded, as a stream of rows: metrics, events, rollouts, tokens."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from molt_tui.errors import MoltError, Refused
from molt_tui.services.runs import Run
from molt_tui.services.tables import WRITERS, private, write_parquet
from molt_tui.services.traces import settings_of
from molt_tui.store.database import Store, store_errors
from molt_tui.store.rollouts import rollout_files, step_records
from molt_tui.tokens import parse

FORMATS = ("csv", "jsonl", "parquet")
Row = Sequence[Any]


@dataclass(frozen=True)
class Table:
    """`columns`: name -> integer, number or text. `stream` gives the rows of one run, in order."""

    columns: dict[str, str]
    stream: Callable[[Store, Run], Iterator[Row]]


def _select(store: Store, sql: str, run: Run) -> Iterator[Row]:
    with store_errors(store.home.database):
        cursor = store.connection.execute(sql, (run.num,))
        while block := cursor.fetchmany(2000):
            yield from (tuple(row) for row in block)


def _metrics(store: Store, run: Run) -> Iterator[Row]:
    """One row per value that was reported, all attempts; a list or a label is in `text`, NaN and infinities in `value`."""
    sql = (
        "SELECT m.attempt, m.step, k.name, m.t, m.value, m.special, m.json FROM metric_rows m JOIN keys k ON k.num = m.key_num"
        " WHERE m.run_num = ? ORDER BY m.key_num, m.step, m.attempt"
    )
    for attempt, step, key, t, value, special, text in _select(store, sql, run):
        yield run.id, attempt, step, key, t, value if special is None else float(special), text


def _events(store: Store, run: Run) -> Iterator[Row]:
    sql = (
        "SELECT attempt, stream, seq, t, kind, step, version, data FROM event_rows WHERE run_num = ?"
        " ORDER BY attempt, stream, seq"
    )
    for *head, data in _select(store, sql, run):
        yield run.id, *head, json.loads(data)


ROLLOUT_COLUMNS = {
    "attempt": "integer", "step": "integer", "rollout_id": "text", "prompt_id": "text", "group_id": "text", "reward": "number",
    "score": "number", "advantage": "number", "turns": "integer", "truncated": "integer", "segments": "integer",
    "sampled": "integer", "masked": "integer", "mismatched": "integer", "ratio_mean": "number", "ratio_extreme": "number",
    "min_version": "integer", "max_version": "integer", "trained_version": "integer", "staleness_max": "integer",
    "label": "text", "info": "text", "prompt_chars": "integer", "text": "text",
}  # fmt: skip


def _rollouts(store: Store, run: Run) -> Iterator[Row]:
    sql = f"SELECT {', '.join(ROLLOUT_COLUMNS)} FROM rollout_rows WHERE run_num = ? ORDER BY step, attempt, id"
    for row in _select(store, sql, run):
        yield run.id, *row


def _tokens(store: Store, run: Run) -> Iterator[Row]:
    """One row per token of every recorded rollout, read from the run directory."""
    config = settings_of(run)
    for attempt, step, path in rollout_files(run.directory):
        for record in step_records(store, run.num, attempt, step, path):
            rollout = parse(record, config)
            for i in range(len(rollout)):
                layers = rollout.layers[i]
                yield (run.id, attempt, step, rollout.rollout_id, rollout.segment(i), i, rollout.ids[i], rollout.pieces[i],
                       rollout.states[i], rollout.versions[i], rollout.staleness(i), rollout.logprobs[i],
                       rollout.train_logprobs[i], rollout.ratio(i), rollout.advantage_of(i),
                       None if layers is None else list(layers))  # fmt: skip


TABLES = {
    "metrics": Table({"run": "text", "attempt": "integer", "step": "integer", "key": "text", "t": "number", "value": "number",
                      "text": "text"}, _metrics),
    "events": Table({"run": "text", "attempt": "integer", "stream": "text", "seq": "integer", "t": "number", "kind": "text",
                     "step": "integer", "version": "integer", "data": "text"}, _events),
    "rollouts": Table({"run": "text", **ROLLOUT_COLUMNS}, _rollouts),
    "tokens": Table({"run": "text", "attempt": "integer", "step": "integer", "rollout_id": "text", "segment": "integer",
                     "position": "integer", "token_id": "integer", "piece": "text", "state": "text", "version": "integer",
                     "staleness": "integer", "logprob": "number", "train_logprob": "number", "ratio": "number",
                     "advantage": "number", "mismatched_layers": "text"}, _tokens),
}  # fmt: skip


def write(store: Store, runs: Sequence[Run], what: str, style: str, out: IO[bytes], *, safe: bool = False) -> int:
    """Write a table of some runs, one after the other, without holding it in memory; returns the number of rows.

    `safe`: for a terminal. Raises Refused for Parquet without pyarrow.
    """
    table, count = TABLES[what], 0

    def rows() -> Iterator[Row]:
        nonlocal count
        for run in runs:
            for row in table.stream(store, run):
                count += 1
                yield row

    if style == "parquet":
        if safe:
            raise Refused("Parquet is binary: redirect the output to a file, or give --output FILE")
        write_parquet(list(table.columns), list(table.columns.values()), rows(), out)
    else:
        text = io.TextIOWrapper(out, "utf-8", errors="replace", newline="", write_through=False)
        try:
            WRITERS[style](list(table.columns), rows(), text, safe=safe)
            text.flush()
        finally:
            text.detach()
    return count


def write_file(store: Store, runs: Sequence[Run], what: str, style: str, target: str) -> int:
    """The same into a file of its owner alone that is there whole or not at all. Raises MoltError when it cannot be written,
    Refused for what is there and is no file, such as /dev/null, which must not become one."""
    path = Path(os.path.realpath(target))
    if path.exists() and not path.is_file():
        raise Refused(f"{target} is not a file; give the name of one, or leave --output out for standard output")
    part = Path(f"{path}.part")
    try:
        try:
            part.unlink(missing_ok=True)
            with open(part, "xb", opener=private) as file:
                count = write(store, runs, what, style, file)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise MoltError(f"cannot write {target}: {error.strerror}") from error
    return count
