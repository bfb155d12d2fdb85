"""Every way to end a run, on the real controller, supervisor, trainer, checkpoints and Ray; the sampler alone is scripted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from engine.data import load_prompts
from engine.flags import load_run_toml
from engine.wire import RunDir
from molt_tui.services import slurm as service
from molt_tui.services.runs import Run
from tests.slurm.conftest import (
    Census,
    Cluster,
    Desk,
    assert_nothing_left,
    assert_trained_once,
    commands,
    exits,
    molt,
    near_the_limit,
    occupy,
    scontrol,
    trained,
    wait_for,
)

PYTHON = Path(__file__).parent / "scripted_python.sh"
GROUPS = 4
SMALL = ("--actor.model_name_or_path", "tiny:qwen3", "--tiny.warmup_steps", "0", "--tiny.hidden_size", "32",
         "--vllm.dtype", "float32", "--train.routing_replay", "false", "--placement.device", "cpu", "--train.max_staleness", "1",
         "--rollout.batch_size", str(GROUPS), "--rollout.n_samples_per_prompt", "4", "--eval.eval_at_start", "false",
         "--eval.eval_at_end", "false", "--eval.steps", "-1", "--ckpt.save_steps", "2", "--slurm.python", str(PYTHON),
         "--slurm.object_store_gb", "0.2", "--slurm.signal_seconds", "120")  # fmt: skip

pytestmark = pytest.mark.timeout(900)


class Trial:
    """One run and what happens to it: `to` lets it come to a step, the others end an attempt."""

    def __init__(self, desk: Desk, steps: int, *flags: str, **files: str) -> None:
        self.desk, self.steps = desk, steps
        self.run = desk.submit("demo", [*SMALL, "--train.max_steps", str(steps), *flags], {"ceiling": "0", **files})
        self.census = Census(self.run)
        self.began = time.monotonic()

    def to(self, step: int, seconds: float = 90) -> Run:
        """Let the sampler go on until the run has trained `step`; returns the run at work in its newest attempt."""
        (self.run.path / "ceiling").write_text(str(step))
        number = max(self.run.attempt_numbers(), default=1)
        found = wait_for(lambda: (r := self.desk.run(self.run)).state == "running" and (r.step or 0) >= step and r, seconds,
                         f"step {step} in attempt {number}", 0.3)  # fmt: skip
        self.census.take()
        return found

    def process(self, *words: str) -> int:
        """The pid of the run's one process whose command line has these words."""
        self.census.take()
        (pid,) = [pid for pid, command in commands(self.run).items() if all(word in command for word in words)]
        return pid

    def ended(self, attempt: int, what: str, *states: str, seconds: float = 60) -> dict:
        """Wait for an attempt's exit record and for the end of all its processes, then for one of `states`."""
        record = wait_for(lambda: next((r for r in exits(self.run) if r["attempt"] == attempt), None), seconds, f"end by {what}")
        # The job itself goes on after a crash, or waits for Slurm to end it; where it ends it is looked for at the run's end.
        gone = self.census.assert_gone(but=lambda command: "slurm.job" in command)
        if states:
            self.desk.until(self.run, *states, seconds=seconds)
        print(f"{what:<22} attempt {attempt}: {record['reason']}: {record['detail']}; no process after {gone:.1f} s, at "
              f"{time.monotonic() - self.began:.0f} s")  # fmt: skip
        return record


def assert_whole(desk: Desk, run: RunDir, steps: int) -> None:
    """Every step once, the prompts exactly the first ones of the data's order, one curve through all attempts."""
    assert_trained_once(run, steps)
    config = load_run_toml(run.run_toml)
    order = load_prompts(config.data, seed=config.train.seed, epochs=config.train.num_episodes)
    due = {prompt.prompt_id for _ in range(steps * GROUPS) if (prompt := order.next())}
    assert {prompt for prompts in trained(run).values() for prompt in prompts} == due
    points = desk.store.rows(
        "SELECT step FROM metric_curve WHERE run = ? AND key = 'reward/mean' ORDER BY step", (run.path.name,)
    )
    assert [row["step"] for row in points] == list(range(1, steps + 1))


def finish(trial: Trial, steps: int, attempts: int) -> None:
    """Let the run come to its end, and look at all of it."""
    (trial.run.path / "ceiling").write_text("100")
    found = trial.desk.until(trial.run, "completed", seconds=90)
    trial.ended(attempts, "the last step")
    assert (found.attempts, found.step) == (attempts, steps)
    assert_whole(trial.desk, trial.run, steps)
    assert_nothing_left(trial.run)


def test_the_driver_killed_then_the_time_limit_then_preemption(desk: Desk):
    trial = Trial(desk, 14, "--slurm.partition", "preempt", "--slurm.nodes", "2")
    run = trial.run

    trial.to(4)
    code, text, _ = molt("stacks", run.path.name)
    assert code == 0 and "== node1: " in text and "== node2: " in text
    for process in ("slurm.job", "slurm.attempt", "slurm.node", "scripted_engine", "ray::ScriptedSampler", "ray::Trainer"):
        assert process in text, text
    assert "Thread " in text and "run_until_complete" in text
    os.kill(trial.process("scripted_engine", "attempt"), signal.SIGKILL)
    record = trial.ended(1, "kill -9 of the driver")
    assert (record["reason"], record["detail"]) == ("crashed", "killed by SIGKILL (out of memory?)")

    (run.path / "slow_save").write_text("4")  # a signal handler of Ray would abort the driver after 3 s
    trial.to(7)
    near_the_limit(desk.job_id(run), int(time.monotonic() - trial.began))
    record = trial.ended(2, "the time limit", "queued")
    assert record["reason"] == "timeout" and "the time limit came near; " in record["detail"] and record["code"] == 3, record
    scontrol("update", f"JobId={desk.job_id(run)}", "TimeLimit=10")
    (run.path / "slow_save").unlink()

    trial.to(9)
    occupy("-p", "train", seconds=2)
    record = trial.ended(3, "preemption", "queued")
    assert record["reason"] == "preempted" and "higher priority" in record["detail"]
    finish(trial, 14, attempts=4)


def test_a_node_lost_then_the_supervisor_killed_then_scancel(desk: Desk, cluster: Cluster):
    trial = Trial(desk, 12, "--slurm.nodes", "2")
    run, site = trial.run, service.read_site(desk.home.path)

    trial.to(3)
    cluster.signal("node2", "KILL")
    record = trial.ended(1, "a node's slurmd killed", "queued", seconds=120)
    assert (record["reason"], record["detail"]) == ("preempted", "the job lost node2")
    cluster.mend()

    trial.to(5)
    os.kill(trial.process("slurm.job"), signal.SIGKILL)
    found = desk.until(run, "failed", seconds=30)
    assert "killed by a signal" in found.detail
    print(f"kill -9 of the supervisor: {found.state}: {found.detail}; no process after {trial.census.assert_gone():.1f} s")
    service.requeue(desk.store, desk.slurm, site, found)

    trial.to(7)
    subprocess.run(["scancel", desk.job_id(run)], check=True)
    record = trial.ended(3, "scancel", "cancelled")
    assert (record["reason"], record["detail"]) == ("cancelled", "the job was cancelled")
    assert exits(run)[1]["detail"] == "its supervisor was killed"
    service.requeue(desk.store, desk.slurm, site, desk.run(run))
    finish(trial, 12, attempts=4)


def test_a_full_disk_is_said_and_healed(desk: Desk, tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk, size = tmp_path / "disk", tmp_path / "size"
    disk.mkdir()
    size.write_text("1m")  # room for one checkpoint
    # Mounted by the job itself: its node has a mount namespace of its own.
    mount = f"size=$(cat {size}); mount -o remount,size=$size {disk} 2> /dev/null || mount -t tmpfs -o size=$size tmpfs {disk}"
    trial = Trial(desk, 6, "--slurm.nodes", "1", "--slurm.setup", mount, "--ckpt.path", str(disk))
    (trial.run.path / "ceiling").write_text("100")
    wait_for(trial.census.take, 60, "processes")
    record = trial.ended(1, "a full disk", "failed", seconds=90)
    assert "No space left on device" in record["detail"] and record["resumable"]
    size.write_text("64m")
    service.requeue(desk.store, desk.slurm, service.read_site(desk.home.path), desk.run(trial.run))
    assert desk.until(trial.run, "completed", seconds=90).attempts == 2
    assert_whole(desk, trial.run, 6)
    assert_nothing_left(trial.run)
