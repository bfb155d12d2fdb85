"""Makes a scenario from a finished run directory, in one command:

python -m molt_tui.scenarios.recorder RUNDIR --name healthy --title "..." --about "..." --verdict completed
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import socket
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from engine.wire import RunDir, encode_line
from molt_tui.errors import MoltError, NotFound
from molt_tui.scenarios.archive import FOLDER, SUFFIX, folded, parse

LOG_LINES = 400
PRIVATE = ("user", "host", "command", "commit")


def record(path: Path, title: str, about: str, verdict: str, rollout_bytes: int = 300_000, onset: int | None = None) -> bytes:
    """The bytes of a scenario. Names of people and machines are left out; rollouts up to a total size, evenly over steps.

    With `onset`, the step at which its pathology began, the recording ends with the last step: it plays as a run that lives.

    Raises NotFound when this is no run directory, MoltError when the run is not over.
    """
    run = RunDir(path)
    if not run.meta.is_file() or not run.attempt_numbers():
        raise NotFound(f"{path} is not a run directory with an attempt")
    if not (run.attempt(run.attempt_numbers()[-1]) / "exit.json").is_file():
        raise MoltError(f"{path.name} is still running; record it when it is over")
    content = ((name, data if name.endswith(".gz") else anonymous(data, run)) for name, data in _content(run, rollout_bytes))
    head: dict[str, Any] = {"title": title, "about": about, "verdict": verdict}
    if onset is not None:
        head |= {"ending": "live", "onset": onset}
        content = without_end(list(content))
    return pack(head, content)


def without_end(content: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """The files up to the last step that trained, without what ended the run."""
    streams = {name: [json.loads(line) for line in data.splitlines()] for name, data in content if name.endswith(".jsonl")}
    last = max(r["t"] for records in streams.values() for r in records if "time/step" in r.get("metrics", ()))
    for name, data in content:
        if name in streams:
            yield name, b"".join(encode_line(record) for record in streams[name] if record["t"] <= last)
        elif not name.endswith("exit.json"):
            yield name, data


def pack(head: dict[str, Any], content: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of a scenario: `head` is its scenario.json, `content` the files of the run directory."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, "scenario.json", json.dumps(head, indent=1).encode())
        for name, data in content:
            _add(archive, *folded(f"run/{name}", data))
    return buffer.getvalue()


def anonymous(data: bytes, run: RunDir) -> bytes:
    """Text with the paths of this machine and its name replaced."""
    checkout, python = Path(__file__).resolve().parents[2], Path(sys.prefix)
    places = {run.path: "RUN", run.path.resolve(): "RUN", python: "PYTHON", python.resolve(): "PYTHON", checkout: "MOLT",
              Path.home(): "HOME"}  # fmt: skip
    for place, word in places.items():
        if len(place.parts) > 1:
            data = data.replace(bytes(place), word.encode())
    return re.sub(rb"\b" + re.escape(socket.gethostname().encode()) + rb"\b", b"host", data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """One member without times and owners, so that the same run gives the same bytes."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _content(run: RunDir, rollout_bytes: int) -> Iterator[tuple[str, bytes]]:
    meta = json.loads(run.meta.read_bytes())
    yield "meta.json", json.dumps({k: v for k, v in meta.items() if k not in PRIVATE}).encode()
    yield "run.toml", run.run_toml.read_bytes()
    for path in sorted(run.agent.rglob("*.py")):
        yield f"agent/{path.relative_to(run.agent)}", path.read_bytes()
    for number in run.attempt_numbers():
        folder = run.attempt(number)
        for stream in ("events", "supervisor"):
            for path in sorted((folder / stream).glob("*.jsonl")):
                yield f"attempts/{number}/{stream}/{path.name}", path.read_bytes()
        for path in sorted((folder / "logs").glob("*.log")):
            lines = path.read_bytes().splitlines(keepends=True)[-LOG_LINES:]
            yield f"attempts/{number}/logs/{path.name}", b"".join(lines)
        if (folder / "exit.json").is_file():
            yield f"attempts/{number}/exit.json", (folder / "exit.json").read_bytes()
    yield from _rollouts(run, rollout_bytes)


def _rollouts(run: RunDir, budget: int) -> Iterator[tuple[str, bytes]]:
    """Rollout files of every n-th step, n as small as the budget allows; the last step's always."""
    found = [p for p in run.rollouts.glob("*.jsonl.gz") if re.fullmatch(r"\d+-\d+\.jsonl\.gz", p.name)]
    found.sort(key=lambda p: [int(part) for part in p.name.split(".")[0].split("-")], reverse=True)
    stride = 1
    while sum(p.stat().st_size for p in found[::stride]) > budget and stride < len(found):
        stride += 1
    for path in found[::stride]:
        yield f"rollouts/{path.name}", path.read_bytes()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m molt_tui.scenarios.recorder", description=__doc__.splitlines()[0])
    parser.add_argument("rundir", type=Path)
    for name, about in (("name", "name of the scenario"), ("title", "one line"), ("about", "what it shows"),
                        ("verdict", "the rule that it must show, e.g. completed")):  # fmt: skip
        parser.add_argument(f"--{name}", required=True, help=about)
    parser.add_argument("--onset", type=int, help="step at which a pathology began; the recording then ends with its last step")
    parser.add_argument("--rollout-bytes", type=int, default=300_000, help="size of all recorded rollouts")
    options = parser.parse_args(arguments)
    data = record(options.rundir, options.title, options.about, options.verdict, options.rollout_bytes, options.onset)
    scenario = parse(options.name, data)
    target = FOLDER / (options.name + SUFFIX)
    target.write_bytes(data)
    print(f"{target}: {len(data) / 1000:.0f} kB, {len(scenario.items)} records, {scenario.duration_s:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
