"""The cockpit as its user feels it, on a terminal of 80x24: first paint, thousands of runs, a live dashboard, an idle one.

The big store holds 5,000 runs of 50 steps and one of 5,000 steps with 80 metrics each: 20.4 million rows, all ingested here.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from engine import wire
from engine.metrics import METRICS
from molt_tui.services import metrics, runs
from molt_tui.store.database import Store, open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from tests.bench.figures import report
from tests.ptydrive import PtyProgram

RUNS, STEPS, LONG_STEPS, KEYS = 5000, 50, 5000, 80
PAIRS, WATCH_S = 7, 60.0
SSH = {"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}
HELLO = """
from textual.app import App
from textual.widgets import Static
class Hello(App):
    def compose(self):
        yield Static("hello world")
Hello().run()
"""
MOLT = [sys.executable, "-m", "molt_tui"]
WALK = ["j", "k", "j", "j", "\x1b[6~", "\x1b[5~", "G", "g"]


def first_paint(folder: str) -> None:
    """Seconds from the start of the process until its words are drawn, both programs in turn.

    Both run from compiled modules, as everything that is installed does; the first pair makes them and is not counted.
    """
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": os.path.join(folder, "compiled")}
    ours, bare = [], []
    for _ in range(1 + PAIRS):
        with PtyProgram([sys.executable, "-c", HELLO], compiled) as program:
            bare.append(program.wait_for("hello world"))
        with PtyProgram(MOLT, {"MOLT_TUI_HOME": os.path.join(folder, "small"), **compiled}) as program:
            ours.append(program.wait_for("molt-tui"))
    del ours[0], bare[0]
    report("cockpit/first_paint_s", statistics.median(ours), "s")
    report("cockpit/first_paint", statistics.median(a / b for a, b in zip(ours, bare, strict=True)), "x of a bare Textual app")


def fill(home: Home) -> Store:
    """Make the run directories and ingest them; prints how fast that was on one core."""
    home.create()
    names = [metric.name for metric in METRICS][:KEYS]
    dice = random.Random(0)

    def events(steps: int) -> bytes:
        lines = []
        for step in range(steps):
            values = {key: dice.random() for key in names}
            head = {"protocol": 1, "run": "r", "attempt": 1, "seq": step, "t": 1.0 + step, "kind": "metrics"}
            lines.append(wire.encode_line({**head, "step": step, "version": step, "metrics": values}))
        return b"".join(lines)

    short = events(STEPS)
    for index in range(RUNS + 1):
        directory = wire.RunDir(home.runs_root / f"r{index:05d}").create()
        meta = {"run": f"r{index:05d}", "name": f"run-{index}", "created": float(index), "recipe": "x", "group": f"g{index // 5}"}
        directory.meta.write_bytes(wire.encode_line(meta))
        attempt = directory.attempt(directory.claim_attempt())
        (attempt / "events/000000.jsonl").write_bytes(events(LONG_STEPS) if index == RUNS else short)
        (attempt / "exit.json").write_bytes(wire.encode_line({"reason": "completed", "t": 1.0}))
        directory.status.write_bytes(wire.encode_line({"attempt": 1, "beat": 1, "phase": "completed", "step": STEPS}))
    store = open_store(home)
    begin = time.process_time()
    done = ingest(store, clock=lambda: time.time() + 1e4)
    report("cockpit/ingest_rows_s", done.metrics / (time.process_time() - begin), "metric rows per CPU second")
    report("cockpit/rows", done.metrics, "metric rows")
    return store


def last_points(store: Store) -> None:
    run = runs.find_run(store, f"r{RUNS:05d}")
    took = []
    for metric in METRICS[:20]:
        begin = time.perf_counter()
        found = metrics.series(store, run, metric.name, last=500)
        took.append(time.perf_counter() - begin)
        assert len(found) == 500
    report("cockpit/last_500_ms", 1e3 * statistics.median(took), "ms")


def many_runs(home: Home) -> None:
    """Opening the Runs screen on the big store, and walking in it."""
    opened = []
    for _ in range(3):
        with PtyProgram(MOLT, {"MOLT_TUI_HOME": str(home.path)}) as program:
            painted = program.wait_for("molt-tui")
            opened.append(program.wait_for(f"run-{RUNS}") - painted)
    report("cockpit/open_5000_runs_s", statistics.median(opened), "s from first paint to the table")
    with PtyProgram(MOLT, {"MOLT_TUI_HOME": str(home.path)}) as program:
        program.wait_for(f"run-{RUNS}")
        program.pump(3.0)
        took = []
        for key in WALK * 15:
            took.append(program.answer_s(key))
            program.pump(0.1)
        report("cockpit/key_p95_ms", 1e3 * statistics.quantiles(took, n=20)[-1], "ms")
        report("cockpit/memory_mb", program.memory_mb(), "MB")


def watched(name: str, command: list[str], environment: dict[str, str], ready: str) -> None:
    with PtyProgram(command, environment) as program:
        program.wait_for(ready, 60.0)
        program.pump(8.0)
        before = program.cpu_s()
        sent = program.pump(WATCH_S)
        report(f"cockpit/{name}_cpu_pct", 100 * (program.cpu_s() - before) / WATCH_S, "% of a core")
        report(f"cockpit/{name}_kb_s", sent / WATCH_S / 1e3, "kB/s")
        program.send("q")
        program.pump(1.0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        small = os.path.join(folder, "small")
        first_paint(folder)
        watched("idle", MOLT, {"MOLT_TUI_HOME": small, **SSH}, "no run yet")
        watched("live", [*MOLT, "demo", "--scenario", "healthy"], {"MOLT_TUI_HOME": small, **SSH}, "▶ running")
        big = Path(folder, "big")
        home = Home(big, big / "runs")
        with fill(home) as store:
            last_points(store)
        many_runs(home)


if __name__ == "__main__":
    main()
