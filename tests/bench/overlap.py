"""How much the asynchronous loop gains on real parts: one run, alternating between bound 0 and bound 2.

Sampler and trainer have one half of the cores each, so neither can gain by taking the other's. Steps right after a
change of the bound are left out: the first synchronous ones still consume what was sampled ahead.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.protocol import send_command
from engine.wire import EventReader, RunDir
from tests.bench.figures import report

PAIRS, LEFT_OUT, MEASURED = 3, 3, 2
FLAGS = [
    "--placement.pin_cores", "--tiny.warmup_steps", "0", "--tiny.hidden_size", "128", "--tiny.num_layers", "4",
    "--rollout.batch_size", "44", "--rollout.n_samples_per_prompt", "8", "--rollout.max_new_tokens", "192",
    "--data.max_len", "256",
    "--train.max_staleness", "0", "--train.max_steps", str(PAIRS * 2 * (LEFT_OUT + MEASURED) + 10), "--train.probe_every", "1000",
    "--eval.steps", "-1", "--eval.eval_at_start", "false", "--eval.eval_at_end", "false", "--trace.rollouts_per_step", "0",
    "--actor.adam.lr", "0", "--train.max_tokens_per_gpu", "4096",
]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "engine", "run", "demo", "--runs-root", root, *FLAGS]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            measure(process, Path(root))
        finally:
            process.terminate()
            process.wait(60)


def measure(process: subprocess.Popen, root: Path) -> None:
    while not (made := list(root.glob("[!.]*"))):
        time.sleep(0.1)
    run = RunDir(made[0])
    reader: EventReader | None = None
    times: list[dict[str, float]] = []
    ratios, synchronous = [], []
    for _ in range(PAIRS):
        medians = {}
        for bound in (0, 2):
            send_command(run, "set", {"train.max_staleness": bound})
            start = len(times) + LEFT_OUT + 1
            while len(times) < start + MEASURED:
                if process.poll() is not None:
                    sys.exit(f"the run ended with {process.returncode}; see {run.path}")
                time.sleep(0.2)
                if reader is None and run.attempt_numbers():
                    reader = EventReader(run.attempt(1) / "events")
                for event in reader.poll() if reader else ():
                    if event["kind"] == "metrics" and "time/step" in event["metrics"]:
                        times.append(event["metrics"])
                        print(
                            {k: round(v, 2) for k, v in event["metrics"].items() if k.startswith("time/") and v > 0.01},
                            file=sys.stderr,
                        )
            medians[bound] = statistics.median(m["time/step"] for m in times[start : start + MEASURED])
        ratios.append(medians[0] / medians[2])
        synchronous.append(medians[0])
    report("overlap/synchronous_step_s", statistics.median(synchronous), "s")
    report("overlap/speedup", statistics.median(ratios), "ratio")


if __name__ == "__main__":
    main()
