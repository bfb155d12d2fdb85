"""Prompts from JSONL, Parquet, a dataset directory or reasoning-gym: mixing, seeded shuffle, epochs, exact cursor."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from engine.config import DataConfig, EvalConfig
from engine.datasets import GYM_PREFIX, dataset_files
from engine.rollout.transport import Prompt


class DataError(ValueError):
    """Prompt data that cannot be used; the message names the flag to change."""


@dataclass
class Source:
    """One dataset in memory. `name` is unique among the sources of a stream and stable between runs."""

    name: str
    rows: Sequence[tuple[Any, Any, dict[str, Any]]]

    def prompt(self, row: int, epoch: int) -> Prompt:
        text, label, metadata = self.rows[row]
        return Prompt(f"{self.name}:{row}@{epoch}", text, label, metadata)


class PromptStream:
    """Every prompt once per epoch, in an order that seed and epoch alone decide; the cursor is exact.

    With weights, each place of the order is drawn from the sources that still have prompts, in proportion to their
    weights; without, all prompts are shuffled together.
    """

    def __init__(self, sources: list[Source], weights: Sequence[float], seed: int, epochs: int) -> None:
        self.sources, self.weights, self.seed, self.epochs = sources, tuple(weights), seed, epochs
        self.epoch, self.position = 0, 0
        self._order = self._epoch_order(0)

    def _epoch_order(self, epoch: int) -> list[tuple[int, int]]:
        """(source, row) of every prompt in the order of this epoch."""
        random = np.random.default_rng([self.seed, epoch])
        sizes = [len(s.rows) for s in self.sources]
        if not self.weights:
            pairs = [(s, r) for s, size in enumerate(sizes) for r in range(size)]
            return [pairs[i] for i in random.permutation(len(pairs))]
        rows = [iter(random.permutation(size).tolist()) for size in sizes]
        return [(s, next(rows[s])) for s in draw_sources(sizes, self.weights, random)]

    def next(self) -> Prompt | None:
        """The next prompt; None when the last epoch is used up."""
        if self.position == len(self._order) and self.epoch + 1 < self.epochs:
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._epoch_order(self.epoch)
        if self.position == len(self._order):
            return None
        source, row = self._order[self.position]
        self.position += 1
        return self.sources[source].prompt(row, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, "data": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the last prompt that was given out. Raises DataError when data, weights or seed differ."""
        if state["data"] != self._fingerprint():
            raise DataError("the prompt data, data.prompt_probs or train.seed differ from the checkpoint's: its cursor "
                            "cannot be used; restore them or start a new run")  # fmt: skip
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._epoch_order(self.epoch)

    def _fingerprint(self) -> list[Any]:
        return [self.seed, list(self.weights), [[s.name, len(s.rows)] for s in self.sources]]


def draw_sources(sizes: list[int], weights: Sequence[float], random: np.random.Generator) -> Iterator[int]:
    """Source index for each place of an epoch: drawn by weight among those that are not used up."""
    left = np.array(sizes)
    weight = np.array(weights, dtype=np.float64)
    while left.any():
        share = np.where(left > 0, weight, 0.0)
        # Sources of weight 0 come last, so that no prompt is lost.
        share = share if share.any() else (left > 0).astype(np.float64)
        block = random.choice(len(sizes), size=256, p=share / share.sum())
        for source in block:
            if not left[source]:
                break
            left[source] -= 1
            yield int(source)


def load_prompts(data: DataConfig, *, seed: int, epochs: int = 1, flag: str = "data.prompt_dataset") -> PromptStream:
    """Read every dataset of `data`. Raises DataError with one line naming the flag (`flag` is the one that lists them)."""
    sources: list[Source] = []
    for spec in data.prompt_dataset:
        name, rows = _read(spec, data, flag)
        if not rows:
            raise DataError(f"--{flag}: {spec} holds no prompt")
        taken = {s.name for s in sources}
        sources.append(Source(name if name not in taken else f"{name}.{len(sources)}", rows))
    limits = split_limit(data.max_samples, [len(s.rows) for s in sources], data.prompt_probs)
    sources = [Source(s.name, s.rows[:limit]) for s, limit in zip(sources, limits, strict=True)]
    return PromptStream(sources, data.prompt_probs, seed, epochs)


def load_eval_sets(evaluation: EvalConfig, data: DataConfig) -> dict[str, list[Prompt]]:
    """Held-out prompts in file order, by the short name of their dataset; keys and template are those of `data`."""
    changes = {"prompt_dataset": evaluation.dataset, "prompt_split": evaluation.split, "prompt_probs": (),
               "max_samples": evaluation.max_samples}  # fmt: skip
    stream = load_prompts(data.model_copy(update=changes), seed=0, flag="eval.dataset")
    return {s.name: [s.prompt(row, 0) for row in range(len(s.rows))] for s in stream.sources}


def split_limit(limit: int, sizes: list[int], weights: Sequence[float]) -> list[int]:
    """How many prompts each source may give so that together they give at most `limit`, shared by weight (or by size)."""
    if sum(sizes) <= limit:
        return sizes
    share = np.array(weights or sizes, dtype=np.float64)
    wanted = np.minimum(np.floor(limit * share / share.sum()), sizes).astype(int).tolist()
    for i, size in enumerate(sizes):
        wanted[i] += min(size - wanted[i], limit - sum(wanted))
    return wanted


Rows = list[tuple[Any, Any, dict[str, Any]]]


def _read(spec: str, data: DataConfig, flag: str) -> tuple[str, Rows]:
    """Name and rows of one dataset."""
    if spec.startswith(GYM_PREFIX):
        return _read_gym(spec, flag)
    rows: Rows = []
    try:
        files = dataset_files(spec, data.prompt_split)
    except ValueError as error:
        raise DataError(f"--{flag}: {error}") from None
    for file in files:
        records = _parquet_records(file, flag) if file.suffix == ".parquet" else _jsonl_records(file, flag)
        rows += [_row(record, data, where) for where, record in records]
    return Path(spec).stem, rows


def _jsonl_records(file: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file.name} line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"--{flag}: {where} is not JSON: {error}") from None
            if not isinstance(record, dict):
                raise DataError(f"--{flag}: {where} is not a JSON object")
            yield where, record


def _parquet_records(file: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except (OSError, ValueError) as error:
        raise DataError(f"--{flag}: {file.name} cannot be read as Parquet: {error}") from None
    for index, record in enumerate(table.to_pylist()):
        yield f"{file.name} row {index}", record


def _row(record: dict[str, Any], data: DataConfig, where: str) -> tuple[Any, Any, dict[str, Any]]:
    """(prompt, label, other columns) of one record."""
    keys = {"input_key": data.input_key} | ({"label_key": data.label_key} if data.label_key else {})
    for flag, key in keys.items():
        if key not in record:
            raise DataError(f"--data.{flag}: {where} has no column '{key}'; it has {', '.join(sorted(record))}")
    rest = {k: v for k, v in record.items() if k not in keys.values()}
    return record[data.input_key], record[data.label_key] if data.label_key else None, rest


def _read_gym(spec: str, flag: str) -> tuple[str, Rows]:
    """Rows of a reasoning-gym dataset. The metadata holds what its scorer needs: source_dataset, options and the entry."""
    import reasoning_gym

    name, _, query = spec[len(GYM_PREFIX) :].partition("?")
    options = {key: parse_value(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    try:
        dataset = reasoning_gym.create_dataset(name, **options)
        entries = [dataset[i] for i in range(len(dataset))]
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(f"--{flag}: {spec}: {error}") from None
    extra = {"source_dataset": name, "options": options}
    return name, [(e["question"], e["answer"], extra | {"entry": e}) for e in entries]


def parse_value(text: str) -> Any:
    """A value of a reasoning-gym option: JSON such as 3, 0.5, true or [1, 2], Python's True and False; else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False}.get(text, text)
