"""What Slurm's words mean for a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from molt_tui.slurm.parse import Ended, Job

PENDING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "REVOKED"})
ACTIVE_STATES = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
# State of an ended job -> (state of the run, words).
END_STATES: dict[str, tuple[str, str]] = {
    "COMPLETED": ("completed", ""),
    "FAILED": ("failed", "the job failed"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
    "TIMEOUT": ("timeout", "the job reached its time limit"),
    "DEADLINE": ("timeout", "the job's deadline passed before it could finish"),
    "PREEMPTED": ("preempted", "a job of higher priority took the nodes"),
    "NODE_FAIL": ("failed", "a node of the job failed"),
    "BOOT_FAIL": ("failed", "a node could not be started for the job"),
    "LAUNCH_FAILED": ("failed", "the job could not be launched on its nodes"),
    "OUT_OF_MEMORY": ("failed", "the job used more memory than it may; raise --slurm.mem"),
}
# Reasons with which a pending job never starts by itself.
HOPELESS: dict[str, str] = {
    "PartitionNodeLimit": "it asks for more nodes than the partition allows; lower --slurm.nodes",
    "PartitionTimeLimit": "it asks for more time than the partition allows; lower --slurm.time",
    "PartitionInactive": "the partition takes no jobs; choose another --slurm.partition",
    "PartitionDown": "the partition is down; choose another --slurm.partition",
    "AccountNotAllowed": "the account may not use this partition; change --slurm.account or --slurm.partition",
    "QOSNotAllowed": "the QOS may not be used here; change --slurm.qos",
    "InvalidAccount": "Slurm does not know the account; change --slurm.account",
    "InvalidQOS": "Slurm does not know the QOS; change --slurm.qos",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time per job; lower --slurm.time",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows less time per job; lower --slurm.time",
    "AssocMaxNodePerJobLimit": "your account allows fewer nodes per job; lower --slurm.nodes",
    "QOSMaxNodePerJobLimit": "the QOS allows fewer nodes per job; lower --slurm.nodes",
    "QOSMaxGRESPerJob": "the QOS allows fewer GPUs per job; lower --slurm.gpus_per_node or --slurm.nodes",
    "AssocMaxGRESPerJob": "your account allows fewer GPUs per job; lower --slurm.gpus_per_node or --slurm.nodes",
    "AssocMaxCpuPerJobLimit": "your account allows fewer CPUs per job; lower --slurm.cpus_per_task",
    "QOSMaxCpuPerJobLimit": "the QOS allows fewer CPUs per job; lower --slurm.cpus_per_task",
    "QOSMinGRES": "the QOS wants more GPUs per job",
    "BadConstraints": "no node fits its constraints; change --slurm.constraint, cpus_per_task, mem or gpus_per_node",
    "DependencyNeverSatisfied": "the job it waits for did not end as required",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release` frees it",
    "ReservationDeleted": "its reservation is gone; change --slurm.reservation",
    "JobLaunchFailure": "the job could not be launched: a path of it is missing on the node",
    "launch failed requeued held": "the job could not be launched and is held",
}
WAITING: dict[str, str] = {
    "Priority": "jobs of higher priority come first",
    "Resources": "waiting for nodes to become free",
    "BeginTime": "it was requeued and starts again after a short wait",
    "Dependency": "it waits for another job to end",
    "ReqNodeNotAvail": "nodes it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation to begin",
    "Licenses": "waiting for a licence",
    "QOSGrpGRES": "the GPUs of the QOS are all in use",
    "QOSGrpCpuLimit": "the CPUs of the QOS are all in use",
    "QOSGrpNodeLimit": "the nodes of the QOS are all in use",
    "AssocGrpGRES": "the GPUs of your account are all in use",
    "AssocGrpCpuLimit": "the CPUs of your account are all in use",
    "AssocGrpNodeLimit": "the nodes of your account are all in use",
    "QOSMaxGRESPerUser": "you use all GPUs that the QOS gives one user",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as the QOS allows",
    "QOSMaxCpuPerUserLimit": "you use all CPUs that the QOS gives one user",
    "AssocMaxJobsLimit": "you run as many jobs as your account allows",
    "JobArrayTaskLimit": "the array's task limit is reached",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions":
        "the nodes it needs are down, drained or reserved",
    "Cleaning": "its last start is still being cleaned up",
    "None": "Slurm has not looked at it yet",
    "": "Slurm has not looked at it yet",
}  # fmt: skip


@dataclass(frozen=True)
class JobView:
    """A job in the words of a run: `state` is one of design states or "active" (the run's own phase counts)."""

    state: str
    words: str
    hopeless: bool = False


def why_pending(reason: str) -> tuple[str, bool]:
    """(why a job waits, in words; whether it can never start)."""
    word = reason.split(",")[0].strip()
    for key in (reason, reason.replace("_", " "), word):
        if key in HOPELESS:
            return f"it cannot start: {HOPELESS[key]}", True
        if key in WAITING:
            return WAITING[key], False
    return f"Slurm says {reason}", False


def view_of_job(job: Job) -> JobView:
    """What squeue's line means for the run."""
    if job.state in PENDING_STATES:
        words, hopeless = why_pending(job.reason)
        return JobView("queued", words, hopeless)
    if job.state in ACTIVE_STATES:
        words = {"COMPLETING": "the job is ending", "CONFIGURING": "the nodes are being prepared",
                 "SUSPENDED": "the job is suspended"}.get(job.state, "")  # fmt: skip
        return JobView("active", words)
    return view_of_end(job.state, job.reason)


def view_of_end(state: str, reason: str = "", signal: int | None = None) -> JobView:
    """What the end of a job means, when the run left no record of its own."""
    word = state.split()[0] if state else ""
    run_state, words = END_STATES.get(word, ("failed", f"Slurm says {state}"))
    if signal == 53 or (word == "FAILED" and reason == "JobLaunchFailure"):
        words = "the job failed at its start or was killed by a signal: see its output in the run directory"
    return JobView(run_state, words)


def view_of_accounting(ended: Ended) -> JobView:
    view = view_of_end(ended.state, ended.reason, ended.signal)
    by = f" by {ended.by}" if ended.by else ""
    return JobView(view.state, view.words + by, view.hopeless)
