"""What state a run is in, from its records and from what this machine can see. Clocks of two hosts are never compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "preempted", "timeout", "lost"})
STATES = ("draft", "queued", "starting", "running", "paused", "stopping", *sorted(FINAL_STATES))

BEAT_LOST_S = 90.0  # a beat on another host that stood still this long, where nothing else can be asked


@dataclass(frozen=True)
class Beat:
    """The beat counter as this reader saw it; times are of the reader's own clock, in seconds.

    `changed` is None while no change has been seen, only the first value.
    """

    value: int | None
    first_seen: float
    changed: float | None = None


def observe(before: Beat | None, value: int | None, now: float) -> Beat:
    """The observation after looking once more; a value that differs in either direction is a change."""
    if before is None or before.value is None:
        return Beat(value, now)
    if value is None or value == before.value:
        return before
    return Beat(value, now, now)


def process_alive(owner: dict[str, Any]) -> bool | None:
    """Whether the process that claimed an attempt (its supervisor.json) lives; None on another host or when nothing is
    known of it."""
    if not isinstance(owner.get("pid"), int) or not isinstance(owner.get("host"), str):
        return None
    from engine.processes import is_alive

    return is_alive(owner)


def state_of(*, phase: str | None, exit_reason: str | None, alive: bool | None, beat: Beat | None, now: float) -> tuple[str, str]:
    """(state, why) of a run; why is empty when the state needs no explanation.

    `phase` is the newest attempt's, None before the first status; `exit_reason` that attempt's exit record, None without one.
    """
    if exit_reason is not None:
        return ("failed" if exit_reason == "crashed" else exit_reason), ""
    if phase is None:
        return "draft", ""
    if phase not in STATES:
        phase = "running"
    if phase in FINAL_STATES:
        return phase, ""
    if alive is False:
        return "lost", "its supervisor is gone and left no exit record"
    still = now - (beat.changed or beat.first_seen) if beat is not None else 0.0
    if alive is None and phase != "queued" and still > BEAT_LOST_S:
        return "lost", f"no beat for {still:.0f} s"
    if alive is True and still > BEAT_LOST_S:
        return phase, f"no beat for {still:.0f} s, its supervisor still exists"
    return phase, ""


BEAT_LIVE_S = 30.0  # a beat seen to change this recently proves that the job runs, whatever Slurm said before


@dataclass(frozen=True)
class JobAnswer:
    """What Slurm last said of a run's job. `state` is "queued", "active" or a final state; `ended`: nothing more is asked."""

    state: str
    words: str
    ended: bool
    stale: str


def state_on_cluster(
    *, phase: str | None, exit_reason: str | None, job: JobAnswer | None, beat: Beat | None, now: float
) -> tuple[str, str]:
    """(state, why) of a run on a cluster: the run's own records first, Slurm's answer where they are silent.

    Without an answer nothing is called lost. `stale` ("as of 10:15") is added to what an old answer says.
    """
    own = "failed" if exit_reason == "crashed" else exit_reason
    if exit_reason == "completed":
        return "completed", ""
    beating = beat is not None and beat.changed is not None and now - beat.changed <= BEAT_LIVE_S
    live_phase = phase if phase in STATES and phase not in FINAL_STATES else "starting"
    if job is None:
        return (own or live_phase if phase is not None else "draft"), ""
    note = f"{job.words} ({job.stale})" if job.words and job.stale else job.words or job.stale
    if job.ended:
        return (own, "") if own is not None else (job.state, note)
    if exit_reason is None and (beating or job.state == "active"):
        return ("starting" if live_phase == "queued" else live_phase), job.stale
    if job.state == "queued":
        return "queued", note
    if own is not None and (phase in FINAL_STATES or phase is None):
        return own, ""
    return live_phase, job.stale
