"""What follows the end of an attempt: end the job, start again, or go on in a new job start. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Errors of the machinery, not of the run: the same attempt may well succeed on another try.
MACHINERY = ("ActorDiedError", "ActorUnavailableError", "RayActorError", "NodeDiedError", "OwnerDiedError", "WorkerCrashedError",
             "ObjectLostError", "RaySystemError", "ConnectionError", "OutOfMemoryError", "RpcError", "LocalRayletDiedError",
             "RayStepEnded", "GetTimeoutError", "NodeStartError")  # fmt: skip
WAIT_SECONDS, WAIT_FACTOR, WAIT_MOST = 10.0, 3.0, 600.0
CLOSE_SECONDS = 5
# Job starts in a row that a time limit ended before anything was trained: the limit is too short for this run.
FRUITLESS = 3
REQUEUED = "Slurm requeued the job"
STATES = {"TIMEOUT": "timeout", "PREEMPTED": "preempted", "CANCELLED": "cancelled"}


@dataclass(frozen=True)
class Action:
    """`kind`: "end" with an exit code, "restart" after `wait` seconds, or "requeue"."""

    kind: str
    words: str
    code: int = 0
    wait: float = 0.0


def is_crash(record: Mapping[str, Any]) -> bool:
    """Whether an exit record tells of a failure that a restart may heal."""
    if record.get("reason") == "crashed":
        return True
    return record.get("reason") == "failed" and str(record.get("detail", "")).startswith(MACHINERY)


def crashes_in_a_row(records: Sequence[Mapping[str, Any]]) -> int:
    """Crashes at the end of the history since the last attempt that trained a step; oldest record first."""
    count = 0
    for index in range(len(records) - 1, -1, -1):
        if not is_crash(records[index]):
            break
        count += 1
        before = max((r.get("step") or 0 for r in records[:index]), default=0)
        if (records[index].get("step") or 0) > before:
            break
    return count


def without_a_step(records: Sequence[Mapping[str, Any]]) -> int:
    """Attempts at the end of the history that ended by a time limit and trained nothing new."""
    count = 0
    for index in range(len(records) - 1, -1, -1):
        before = max((r.get("step") or 0 for r in records[:index]), default=0)
        if records[index].get("reason") != "timeout" or (records[index].get("step") or 0) > before:
            break
        count += 1
    return count


def next_action(
    records: Sequence[Mapping[str, Any]], *, requeue: bool, max_restarts: int, first_wait: float = WAIT_SECONDS
) -> Action:
    """What to do after the newest exit record."""
    newest = records[-1]
    reason, detail = newest.get("reason"), str(newest.get("detail", ""))
    if reason == "completed":
        return Action("end", "the run is complete")
    if reason in ("timeout", "preempted"):
        idle = without_a_step(records)
        if idle >= FRUITLESS:
            return Action("end", f"{idle} job starts in a row ended before a step was done; raise --slurm.time", code=1)
        if requeue:
            return Action("requeue", detail or str(reason))
        return Action("end", f"{reason}, and --slurm.requeue is off: `molt-tui requeue` goes on")
    if reason == "cancelled":
        return Action("end", "stopped as asked")
    if not is_crash(newest):
        return Action("end", detail, code=1)
    crashes = crashes_in_a_row(records)
    if crashes > max_restarts:
        return Action("end", f"crashed {crashes} times in a row (slurm.max_restarts {max_restarts}): {detail}", code=1)
    return Action("restart", detail, wait=min(first_wait * WAIT_FACTOR ** (crashes - 1), WAIT_MOST))


def reason_of_signal(signal_name: str, record: Mapping[str, str], restart: int) -> tuple[str, str]:
    """(exit reason, words) of a job start that Slurm signalled; `record` is `scontrol show job`, empty without an answer."""
    state = record.get("JobState", "")
    preempted = record.get("PreemptTime", "None") not in ("None", "Unknown", "N/A", "")
    restarted = record.get("Restarts", "").isdigit() and int(record["Restarts"]) > restart
    for word, reason in STATES.items():
        if state.startswith(word):
            return reason, {"timeout": "the time limit was reached", "preempted": "a job of higher priority took the nodes",
                            "cancelled": "the job was cancelled"}[reason]  # fmt: skip
    if state.startswith("NODE_FAIL"):
        return "preempted", "a node of the job failed"
    if preempted:
        return "preempted", "a job of higher priority took the nodes"
    if signal_name == "SIGUSR1":
        return "timeout", "the time limit came near"
    if restarted or state in ("PENDING", "REQUEUED"):
        return "preempted", REQUEUED
    limit, elapsed = _seconds(record.get("TimeLimit", "")), _seconds(record.get("RunTime", ""))
    if limit is not None and elapsed is not None and elapsed >= limit - CLOSE_SECONDS:
        return "timeout", "the time limit was reached"
    return "cancelled", "the job was cancelled"


def _seconds(text: str) -> int | None:
    """Seconds of Slurm's [days-]HH:MM:SS; None for anything else."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
