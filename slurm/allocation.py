"""What a job knows about itself: its numbers, its settings from run.toml, and what Slurm says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.wire import RunDir, encode_line, write_atomic

QUERY_SECONDS = 15.0
OWNER = "owner.json"
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # how the cluster is reached


@dataclass(frozen=True)
class Settings:
    """The parts of run.toml that matter inside the allocation."""

    requeue: bool = True
    max_restarts: int = 3
    container: str | None = None
    container_kind: str = "pyxis"
    container_mounts: tuple[str, ...] = ()
    object_store_gb: float | None = None
    actors: int = 4
    steps: int | None = None


def read_settings(run: RunDir) -> Settings:
    """Settings of a run; defaults stand for what the file does not say."""
    raw = tomllib.loads(run.run_toml.read_text("utf-8"))
    slurm = raw.get("slurm", {})
    known = {k: v for k, v in slurm.items() if k in Settings.__dataclass_fields__}
    known["container_mounts"] = tuple(slurm.get("container_mounts", ()))
    actor = raw.get("actor", {})
    ranks = actor.get("num_nodes", 1) * actor.get("num_gpus_per_node", 1)
    actors = raw.get("vllm", {}).get("num_engines", 1) + ranks + raw.get("rollout", {}).get("num_runners", 2) + 2
    return Settings(**known, actors=actors, steps=raw.get("train", {}).get("max_steps"))


@dataclass(frozen=True)
class Job:
    """This job start. `restart` counts the starts of one job id before this one."""

    id: str
    restart: int
    node_list: str
    nodes: int
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def here(cls) -> Job:
        e = os.environ
        return cls(e["SLURM_JOB_ID"], int(e.get("SLURM_RESTART_COUNT") or 0), e.get("SLURM_JOB_NODELIST", ""),
                   int(e.get("SLURM_JOB_NUM_NODES") or e.get("SLURM_NNODES") or 1), dict(e))  # fmt: skip

    def owns(self, run: RunDir) -> bool:
        """Whether no other job start has taken the run since; a missing or torn file changes nothing."""
        try:
            owner = json.loads((folder(run) / OWNER).read_bytes())
            return (str(owner["job"]), int(owner["restart"])) == (self.id, self.restart)
        except (OSError, ValueError, KeyError, TypeError):
            return True

    def take(self, run: RunDir, **more: Any) -> None:
        """Become the run's owner; an older start on a node that Slurm lost sees it and ends itself."""
        record = {"job": self.id, "restart": self.restart, "nodes": self.node_list, **more}
        write_atomic(folder(run) / OWNER, encode_line(record))


def folder(run: RunDir) -> Path:
    path = run.path / "slurm"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def call(
    argv: Sequence[str], seconds: float = QUERY_SECONDS, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """(exit code, output) of a Slurm program; None when it did not answer in time or is missing."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=seconds,
                              stdin=subprocess.DEVNULL, env=environment)  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        return None, f"{argv[0]}: {error}"
    return done.returncode, done.stdout + done.stderr


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what Slurm set for this job: a job submitted with it would take it for its own."""
    ours = ("SLURM_", "SBATCH_", "SRUN_", "SLURMD_")
    return {name: value for name, value in environment.items() if name in KEPT or not name.startswith(ours)}


def show_job(job_id: str, seconds: float = QUERY_SECONDS) -> dict[str, str]:
    """Some fields of `scontrol show job`; empty when the controller does not answer."""
    code, text = call(["scontrol", "show", "job", job_id], seconds)
    if code != 0:
        return {}
    return dict(
        re.findall(r"\b(JobState|Reason|Restarts|Requeue|PreemptTime|EndTime|StartTime|RunTime|TimeLimit|ExitCode)=(\S+)", text)
    )


def lost_nodes(node_list: str, seconds: float = QUERY_SECONDS) -> str:
    """Which of these nodes are out of service, by name; empty when none is or nobody knows."""
    code, text = call(["sinfo", "-h", "-N", "-n", node_list, "-t", "down,fail,no_respond", "-o", "%N"], seconds)
    return ", ".join(sorted(set(text.split()))) if code == 0 else ""


def kill_wait(default: float = 30.0) -> float:
    """Seconds between Slurm's TERM and its KILL on this cluster."""
    _, text = call(["scontrol", "show", "config"])
    found = re.search(r"^KillWait\s*=\s*(\d+)", text, re.MULTILINE)
    return float(found.group(1)) if found else default
