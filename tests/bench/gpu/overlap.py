"""What asynchronous, partial rollouts gain on the same two GPUs: one run, first at staleness bound 0, then at 3.

The 1 B mixture of experts with long-tailed lengths; steps right after the change of the bound are left out.
usage: python -m tests.bench.gpu.overlap MODELS RUNS_ROOT [flags of the engine ...]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine.protocol import send_command
from engine.wire import EventReader, RunDir
from tests.bench.figures import report
from tests.bench.gpu.long_tail_agent import LONGEST
from tests.bench.gpu.moe import FLAGS as MOE_FLAGS
from tests.bench.gpu.moe import HERE, write_prompts

BOUND, LEFT_OUT, SYNCHRONOUS, ASYNCHRONOUS = 3, 4, 4, 10
FLAGS = [
    *MOE_FLAGS, "--rollout.batch_size", "16", "--rollout.n_samples_per_prompt", "8", "--rollout.max_new_tokens", "8",
    "--data.max_len", str(LONGEST + 64), "--train.agent_path", str(HERE / "long_tail_agent.py"), "--train.max_staleness", "0",
    "--train.max_steps", "200", "--train.probe_every", "1000", "--train.routing_replay", "true", "--trace.rollouts_per_step", "0",
    "--vllm.max_num_seqs", "512", "--ckpt.disable_final_save", "true", "--algo.advantage.is_correction_level", "token",
]  # fmt: skip


def main() -> None:
    models, root, *flags = sys.argv[1:]
    prompts = write_prompts(Path(root) / "prompts.jsonl")
    flags = [f.format(models=models, prompts=prompts) for f in FLAGS] + flags
    command = [sys.executable, "-m", "engine", "run", "demo", "--runs-root", root, "--run.name", "overlap", *flags]
    process = subprocess.Popen(command)
    try:
        measure(process, Path(root))
    finally:
        process.terminate()
        process.wait(60)


def measure(process: subprocess.Popen, root: Path) -> None:
    while not (made := list(root.glob("[!.]*overlap*"))):
        time.sleep(0.1)
    steps = Steps(RunDir(made[0]), process)
    steps.wait_for(1 + SYNCHRONOUS)
    synchronous = steps.seen[1 : 1 + SYNCHRONOUS]
    send_command(steps.run, "set", {"train.max_staleness": BOUND})
    start = len(steps.seen) + LEFT_OUT
    steps.wait_for(start + ASYNCHRONOUS)
    asynchronous = steps.seen[start : start + ASYNCHRONOUS]
    for name, found in (("synchronous", synchronous), ("asynchronous", asynchronous)):
        mean = {k: statistics.mean(float(m.get(k, 0.0)) for m in found) for k in found[0] if k.startswith("time/")}
        print(name, {k: round(v, 3) for k, v in mean.items()}, flush=True)
        report(f"overlap/{name}_step_s", mean["time/step"], "s")
        report(f"overlap/{name}_kept_tok_s", statistics.mean(m["perf/kept_tok_s"] for m in found), "tokens/s")
        report(f"overlap/{name}_rollout_idle_frac", mean["time/rollout_idle_frac"], "share")
        report(f"overlap/{name}_pause_share", mean["time/pause"] / mean["time/step"], "share")
    slow, fast = (sum(m["time/step"] * m["perf/kept_tok_s"] for m in s) / sum(m["time/step"] for m in s)
                  for s in (synchronous, asynchronous))  # fmt: skip
    report("overlap/speedup", fast / slow, "ratio")
    for key in (
        "staleness/mean",
        "staleness/max",
        "offpolicy/k3_kl",
        "routing/replayed_mismatch_frac",
        "staleness/masked_tokens",
    ):
        if found := [float(m[key]) for m in asynchronous if key in m]:
            report(f"overlap/asynchronous_{key}", statistics.mean(found), "")


class Steps:
    """The training metrics of a run that goes on."""

    def __init__(self, run: RunDir, process: subprocess.Popen) -> None:
        self.run, self.process = run, process
        self.seen: list[dict[str, Any]] = []
        self.reader: EventReader | None = None

    def wait_for(self, count: int) -> None:
        while len(self.seen) < count:
            if self.process.poll() is not None:
                sys.exit(f"the run ended with {self.process.returncode}; see {self.run.path}")
            time.sleep(0.1)
            if self.reader is None and self.run.attempt_numbers():
                self.reader = EventReader(self.run.attempt(1) / "events")
            for event in self.reader.poll() if self.reader else ():
                if event["kind"] == "metrics" and "time/step" in event["metrics"]:
                    self.seen.append(event["metrics"])


if __name__ == "__main__":
    main()
