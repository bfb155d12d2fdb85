"""The file of a scenario: a run directory, compressed, with scenario.json beside it.

    scenario.json           title, about, verdict (the rule that its end shows while it is alive; see molt_tui/verdict.py),
                            ending, onset (the step at which it begins), time_left_s (of a job, at the start), log_t
                            (seconds from the start of each line of a log; without it they are spread evenly)
    run/run.toml, agent/, meta.json, rollouts/, attempts/<n>/{events,supervisor,logs}/, attempts/<n>/exit.json

Events keep their original times. Their metrics lie column by column (`fold`), which takes half the room. Notes, control and
checkpoints are left out.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from molt_tui.errors import MoltError, NotFound

FOLDER = Path(__file__).parent
SUFFIX = ".tar.gz"
STREAMS = ("events", "supervisor")
Action = Literal["events", "supervisor", "rollouts", "log", "exit"]
# exit: as recorded. live: it goes on as it was. silent: its beat stops. lost: its process dies without a word.
Ending = Literal["exit", "live", "silent", "lost"]


@dataclass(frozen=True)
class Item:
    """Something that happened `t` seconds after the start: a record of a stream, a rollout file, a log line, the end."""

    t: float
    attempt: int
    action: Action
    payload: Any
    name: str = ""


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    about: str
    verdict: str
    ending: Ending
    onset: int | None
    time_left_s: float | None
    meta: dict[str, Any]
    files: dict[str, bytes] = field(repr=False)
    items: list[Item] = field(repr=False)

    @property
    def max_steps(self) -> int | None:
        """The planned number of steps, where the recorded run had one."""
        return tomllib.loads(self.files["run.toml"].decode()).get("train", {}).get("max_steps")

    @property
    def duration_s(self) -> float:
        return self.items[-1].t if self.items else 0.0


def names() -> list[str]:
    """Scenarios of this installation."""
    return sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob("*" + SUFFIX))


def load(name: str) -> Scenario:
    """A shipped scenario by name, or a file by path. Raises NotFound, or MoltError when the file is damaged."""
    path = FOLDER / (name + SUFFIX)
    if not os.path.isfile(path):
        path = Path(name)
    if not os.path.isfile(path):
        raise NotFound(f"no scenario {name!r}; there are: {', '.join(names()) or 'none'}")
    try:
        return parse(path.name.removesuffix(SUFFIX), path.read_bytes())
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MoltError(f"{path} is not a scenario: {error}") from error


def parse(name: str, data: bytes) -> Scenario:
    """Read the bytes of a scenario file."""
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                members[member.name] = content.read()
    members = dict(unfolded(name, data) for name, data in members.items())
    about = json.loads(members["scenario.json"])
    run = {key.removeprefix("run/"): value for key, value in members.items() if key.startswith("run/")}
    files = {key: value for key, value in run.items() if key == "run.toml" or key.startswith("agent/")}
    return Scenario(
        name, about["title"], about["about"], about["verdict"], about.get("ending", "exit"), about.get("onset"),
        about.get("time_left_s"), json.loads(run["meta.json"]), files, timeline(run, about.get("log_t", {})),
    )  # fmt: skip


FOLDED, LINES = ".folded.json", ".jsonl"


def folded(name: str, data: bytes) -> tuple[str, bytes]:
    """A file as it lies in the archive: lines of events with their metrics as columns; any other as it is."""
    if not name.endswith(LINES):
        return name, data
    records = [json.loads(line) for line in data.splitlines() if line.strip()]
    rows = [record["metrics"] for record in records if "metrics" in record]
    columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    plain = [record | {"metrics": None} if "metrics" in record else record for record in records]
    packed = json.dumps({"records": plain, "columns": columns}, separators=(",", ":"))
    return name.removesuffix(LINES) + FOLDED, packed.encode()


def unfolded(name: str, data: bytes) -> tuple[str, bytes]:
    """The inverse of `folded`."""
    if not name.endswith(FOLDED):
        return name, data
    packed = json.loads(data)
    row = 0
    for record in packed["records"]:
        if "metrics" in record:
            record["metrics"] = {key: column[row] for key, column in packed["columns"].items() if column[row] is not None}
            row += 1
    lines = [json.dumps(record, separators=(",", ":")) for record in packed["records"]]
    return name.removesuffix(FOLDED) + LINES, "".join(f"{line}\n" for line in lines).encode()


def timeline(run: dict[str, bytes], log_t: dict[str, list[float]]) -> list[Item]:
    """Everything that happened, in order, with times from 0."""
    items: list[Item] = []
    for attempt in sorted({int(key.split("/")[1]) for key in run if key.startswith("attempts/")}):
        items += _attempt(run, attempt, log_t)
    start = min((item.t for item in items), default=0.0)
    items = [Item(item.t - start, item.attempt, item.action, item.payload, item.name) for item in items]
    order = {"supervisor": 0, "events": 1, "rollouts": 2, "log": 3, "exit": 4}
    return sorted(items, key=lambda item: (item.t, order[item.action]))


def _attempt(run: dict[str, bytes], attempt: int, log_t: dict[str, list[float]]) -> list[Item]:
    prefix = f"attempts/{attempt}/"
    items: list[Item] = []
    for stream in STREAMS:
        for key in sorted(k for k in run if k.startswith(f"{prefix}{stream}/")):
            records = [json.loads(line) for line in run[key].splitlines() if line.strip()]
            items += [Item(float(record["t"]), attempt, stream, record) for record in records]
    if not items:
        return []
    first, last = min(i.t for i in items), max(i.t for i in items)
    done = {i.payload.get("step"): i.t for i in items if i.payload["kind"] == "metrics"}
    for key in (k for k in run if k.startswith(f"rollouts/{attempt}-")):
        step = int(key.split("-")[1].split(".")[0])
        items.append(Item(done.get(step, last), attempt, "rollouts", run[key], key.removeprefix("rollouts/")))
    for key in (k for k in run if k.startswith(f"{prefix}logs/")):
        lines = run[key].splitlines(keepends=True)
        name = key.removeprefix(f"{prefix}logs/")
        times = log_t.get(name) or [(last - first) * i / len(lines) for i in range(len(lines))]
        items += [Item(first + t, attempt, "log", line, name) for t, line in zip(times, lines, strict=True)]
    if f"{prefix}exit.json" in run:
        items.append(Item(last, attempt, "exit", json.loads(run[f"{prefix}exit.json"])))
    return items
