"""The GPU bench: builds its models, runs every section as a process of its own, prints JSON lines and saves a record.

usage: python -m tests.bench.gpu [OUT_DIR] [SECTION ...]     no network, under 8 minutes; OUT_DIR default gpu-bench
Two GPUs; on one, what does not need two: sampler and trainer share it, transfer and overlap are left out.

Sections that hardly load a GPU run side by side. Those that are timed start beside them and measure alone, one after the
other, when their turn comes.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

LIMIT_S = 475.0
PACKAGES = ("torch", "vllm", "ray", "nemo-automodel", "transformers", "triton")


@dataclass(frozen=True)
class Section:
    """`command`: arguments of `python -m tests.bench.gpu.*`; `gpus`: what CUDA_VISIBLE_DEVICES says; `after`: sections that
    have to end before it starts, `turn`: before it measures."""

    name: str
    command: str
    limit_s: float
    gpus: str = "0,1"
    after: tuple[str, ...] = ()
    turn: tuple[str, ...] = ()


SECTIONS = [
    Section("dense", "models {models} dense teacher", 100, "0"),
    Section("moe_1b", "models {models} moe_1b", 100, "1"),
    Section("own", "transfer own", 170),
    Section("stock", "transfer stock", 170),
    Section("learn", "learn learn {models} {runs}", 210, "0,1", ("dense",)),
    Section("colocated", "learn colocated {models} {runs} --train.max_steps 60", 210, "1", ("dense",)),
    Section("distill", "learn distill {models} {runs}", 210, "1,0", ("dense",)),
    Section("step", "step {models} {out}", 300, "1", ("moe_1b", "own", "stock"), ("learn", "colocated", "distill")),
    Section("moe", "moe {models} {runs}", 440, "0,1", ("moe_1b", "dense"), ("step",)),
]

SHARED = "--placement.colocate true"
ON_ONE_GPU = [
    Section("dense", "models {models} dense teacher", 100, "0"),
    Section("moe_1b", "models {models} moe_1b", 100, "0"),
    Section("colocated", "learn colocated {models} {runs}", 210, "0", ("dense",)),
    Section("distill", f"learn distill {{models}} {{runs}} {SHARED}", 210, "0", ("dense",)),
    Section("step", "step {models} {out}", 300, "0", ("moe_1b", "dense"), ("colocated", "distill")),
    Section("moe", f"moe {{models}} {{runs}} {SHARED}", 440, "0", ("moe_1b", "dense"), ("step",)),
]


class Bench:
    """Starts each section when those before it have ended; its output goes to OUT_DIR/NAME.log, its figures are printed too."""

    def __init__(self, out: Path, sections: list[Section], models: Path) -> None:
        self.out, self.sections = out, sections
        self.places = {"models": models, "runs": out / "runs", "out": out}
        self.started = time.monotonic()
        self.running: dict[str, tuple[Section, subprocess.Popen, float]] = {}
        self.ends: dict[str, str] = {}
        self.figures: list[dict[str, Any]] = []

    def run(self) -> None:
        waiting, chosen = list(self.sections), {section.name for section in self.sections}
        while waiting or self.running:
            for section in [s for s in waiting if chosen.intersection(s.after) <= self.ends.keys()]:
                waiting.remove(section)
                self._start(section)
            for name, (section, *_) in self.running.items():
                if chosen.intersection(section.turn) <= self.ends.keys():
                    (self.out / f"{name}.turn").touch()
            time.sleep(0.2)
            for section, process, started in list(self.running.values()):
                if process.poll() is not None:
                    self._ended(section, started, "done" if process.returncode == 0 else f"exit code {process.returncode}")
                elif time.monotonic() > min(started + section.limit_s, self.started + LIMIT_S):
                    process.terminate()
                    self._ended(section, started, f"ended after {time.monotonic() - started:.0f} s")

    def _start(self, section: Section) -> None:
        module, *arguments = section.command.format(**self.places).split()
        command = [sys.executable, "-m", f"tests.bench.gpu.{module}", *arguments]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": section.gpus, "PYTHONUNBUFFERED": "1"}
        environment["BENCH_TURN"] = str(self.out / f"{section.name}.turn")
        with (self.out / f"{section.name}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.running[section.name] = section, process, time.monotonic()

    def _ended(self, section: Section, started: float, how: str) -> None:
        del self.running[section.name]
        self.ends[section.name] = how
        for line in (self.out / f"{section.name}.log").read_text(errors="replace").splitlines():
            if line.startswith('{"name": '):
                print(line, flush=True)
                self.figures.append(json.loads(line))
        print(f"{section.name}: {how}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        record = {"machine": machine(), "sections": self.ends, "figures": self.figures}
        (self.out / "record.json").write_text(json.dumps(record, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"gpus": gpus, "cores": os.cpu_count(), "python": platform.python_version()} | versions


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "gpu-bench").absolute()
    out.mkdir(parents=True, exist_ok=True)
    for turn in out.glob("*.turn"):
        turn.unlink()
    wanted = {"dense", "moe_1b", *sys.argv[2:]}
    possible = SECTIONS if len(machine()["gpus"]) > 1 else ON_ONE_GPU
    sections = [s for s in possible if s.name in wanted or not sys.argv[2:]]
    with tempfile.TemporaryDirectory() as models:
        bench = Bench(out, sections, Path(models))
        bench.run()
    sys.exit(any(end != "done" for end in bench.ends.values()))


if __name__ == "__main__":
    main()
