"""What the cluster looks like, and what is known of a run's job: partitions, free GPUs, why pending, time-limit forecast."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt_tui.errors import MoltError, Refused
from molt_tui.services.runs import Run
from molt_tui.slurm import poll, submit
from molt_tui.slurm.commands import NoAnswer, Slurm, SlurmError
from molt_tui.slurm.forecast import Forecast, forecast
from molt_tui.slurm.parse import Association, Node, Partition
from molt_tui.slurm.preflight import Finding
from molt_tui.slurm.site import Site
from molt_tui.slurm.submit import Receipt
from molt_tui.store.database import Store

if TYPE_CHECKING:
    from engine.config import Config

NODES_SECONDS, NAME_SECONDS, ACCOUNTS_SECONDS = 30.0, 86400.0, 3600.0


@dataclass(frozen=True)
class PartitionLine:
    """One partition on the Cluster screen; GPUs by type, nodes by state; `out`: (node, state and reason) out of service."""

    name: str
    default: bool
    state: str
    max_time: float | None
    nodes: int
    by_state: dict[str, int]
    gpus: dict[str, int]
    free_gpus: dict[str, int]
    out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobLine:
    """One own job that belongs to a run. `state` is the job's, as Slurm says it. Times in epoch seconds."""

    run: str
    name: str
    job_id: str | None
    state: str
    words: str
    nodes: int | None
    node_list: str
    start: float | None
    end: float | None


@dataclass(frozen=True)
class Overview:
    """One cluster on the Cluster screen. `answered` is when Slurm said so; `error` why there is no newer answer; `here`: whether
    Slurm's programs on this machine talk to it."""

    cluster: str
    partitions: tuple[PartitionLine, ...]
    jobs: tuple[JobLine, ...]
    answered: float | None
    error: str = ""
    here: bool = True


@dataclass(frozen=True)
class JobReport:
    """All that is known of a Slurm run's job: its newest submission, Slurm's last word, the forecast, the attempts as (number,
    reason or None, last step)."""

    cluster: str
    submission: Receipt | None
    job: JobLine | None
    answered: float | None
    error: str
    forecast: Forecast | None
    attempts: tuple[tuple[int, str | None, int | None], ...]


def cluster_name(store: Store, slurm: Slurm, site: Site, *, older: bool = True) -> str:
    """The cluster that Slurm's programs talk to here, from the profile or asked once a day; without `older` a silent controller
    is asked again at once. Raises MoltError."""
    if site.cluster:
        return site.cluster

    def ask() -> str:
        return slurm.config().get("ClusterName", "")

    kind = f"name {os.environ.get('SLURM_CONF', '')}".strip()
    try:
        name, _ = poll.cached(store, "", kind, NAME_SECONDS, ask, time.time(), older=older)
    except (NoAnswer, SlurmError) as error:
        raise MoltError(f"Slurm does not answer: {error}") from error
    return str(name) or "slurm"


def hardware(store: Store, slurm: Slurm, cluster: str, *, older: bool = True) -> tuple[list[Partition], list[Node], float]:
    """(partitions, nodes, when asked), at most 30 s old while Slurm answers; older without an answer, unless not wanted.

    Raises MoltError when there is nothing to show.
    """

    def ask() -> dict[str, Any]:
        return {"partitions": [asdict(p) for p in slurm.partitions()], "nodes": [asdict(n) for n in slurm.nodes()]}

    try:
        answer, at = poll.cached(store, cluster, "hardware", NODES_SECONDS, ask, time.time(), older=older)
    except (NoAnswer, SlurmError) as error:
        raise MoltError(f"Slurm does not answer: {error}") from error
    assert isinstance(answer, dict)
    return *_read_hardware(answer), at


def _read_hardware(answer: dict[str, Any]) -> tuple[list[Partition], list[Node]]:
    return [_partition(p) for p in answer["partitions"]], [_node(n) for n in answer["nodes"]]


def _partition(record: dict[str, Any]) -> Partition:
    tuples = {k: tuple(record[k]) if record[k] is not None else None for k in ("allow_accounts", "deny_accounts", "allow_qos")}
    return Partition(**(record | tuples))


def _node(record: dict[str, Any]) -> Node:
    return Node(**(record | {k: tuple(record[k]) for k in ("states", "partitions", "features")}))


def associations(store: Store, slurm: Slurm, cluster: str) -> list[Association] | None:
    """Accounts of this user with their limits; None where there is no accounting."""

    def ask() -> list[dict[str, Any]]:
        return [asdict(association) for association in slurm.associations(getpass.getuser())]

    try:
        records, _ = poll.cached(store, cluster, "associations", ACCOUNTS_SECONDS, ask, time.time())
    except (NoAnswer, SlurmError, MoltError):
        return None
    return [Association(**record) for record in records] if isinstance(records, list) and records else None


def overview(store: Store, slurm: Slurm, site: Site) -> Overview:
    """Partitions with free GPUs, and own jobs with their runs. Raises MoltError when Slurm never answered."""
    cluster = cluster_name(store, slurm, site)
    partitions, nodes, answered = hardware(store, slurm, cluster)
    return _overview(store, cluster, partitions, nodes, answered, here=True)


def overviews(store: Store, slurm: Slurm, site: Site) -> list[Overview]:
    """The cluster of this machine first, then others as they were last seen from here. Never raises for what Slurm does."""
    here, found = "", []
    try:
        here = cluster_name(store, slurm, site)
        found.append(overview(store, slurm, site))
    except MoltError as error:
        found.append(Overview(here, (), tuple(own_jobs(store, here)), None, str(error)))
    others = "SELECT DISTINCT cluster FROM runs WHERE cluster NOT IN ('local', ?) ORDER BY cluster"
    for row in store.rows(others, (here,)):
        known = store.rows("SELECT answered, text FROM slurm_calls WHERE cluster = ? AND kind = 'hardware'", (row["cluster"],))
        partitions, nodes, answered = [], [], None
        if known and known[0]["text"]:
            partitions, nodes = _read_hardware(json.loads(known[0]["text"]))
            answered = known[0]["answered"]
        found.append(_overview(store, row["cluster"], partitions, nodes, answered, here=False))
    return found


def _overview(store: Store, cluster: str, partitions: Sequence[Partition], nodes: Sequence[Node], answered: float | None, *,
              here: bool) -> Overview:  # fmt: skip
    lines = tuple(_partition_line(p, [n for n in nodes if p.name in n.partitions]) for p in partitions)
    calls = "SELECT error FROM slurm_calls WHERE cluster = ? AND kind IN ('jobs', 'hardware') AND error IS NOT NULL"
    errors = [row["error"] for row in store.rows(calls, (cluster,))]
    return Overview(cluster, lines, tuple(own_jobs(store, cluster)), answered, errors[0] if errors and here else "", here)


def _partition_line(partition: Partition, nodes: Sequence[Node]) -> PartitionLine:
    by_state: dict[str, int] = {}
    gpus: dict[str, int] = {}
    free: dict[str, int] = {}
    for node in nodes:
        word = node.states[0].lower() if node.usable else next((s.lower() for s in node.states if s != "IDLE"), "down")
        by_state[word] = by_state.get(word, 0) + 1
        for kind, count in node.gpus.items():
            gpus[kind] = gpus.get(kind, 0) + count
            if node.usable:
                free[kind] = free.get(kind, 0) + max(0, count - node.gpus_used.get(kind, 0))
    out = tuple((n.name, " ".join((*n.states, n.reason)).strip()) for n in nodes if not n.usable)
    return PartitionLine(partition.name, partition.default, partition.state, partition.max_time, len(nodes), by_state, gpus,
                         free, out)  # fmt: skip


def own_jobs(store: Store, cluster: str) -> list[JobLine]:
    """Jobs of own runs that may still live, as Slurm last said."""
    sql = "SELECT r.id, r.name, j.* FROM slurm_jobs j JOIN runs r ON r.num = j.run_num WHERE j.cluster = ? AND j.ended = 0" \
          " ORDER BY r.created DESC"  # fmt: skip
    return [_job_line(row) for row in store.rows(sql, (cluster,))]


def job_of(store: Store, run: Run) -> JobLine | None:
    """What Slurm last said of a run's job; None for a local run and before the first answer."""
    sql = "SELECT r.id, r.name, j.* FROM slurm_jobs j JOIN runs r ON r.num = j.run_num WHERE j.run_num = ?"
    found = store.rows(sql, (run.num,))
    return _job_line(found[0]) if found else None


def _job_line(row: Any) -> JobLine:
    return JobLine(row["id"], row["name"], row["job_id"], row["slurm_state"] or row["state"], row["words"] or "", row["nodes"],
                   row["node_list"] or "", row["start"], row["end"])  # fmt: skip


def forecast_of(store: Store, run: Run) -> Forecast | None:
    """Where the run will stand at its job's end; None before two steps are done."""
    sql = "SELECT step, t FROM metric_rows m WHERE run_num = ? AND attempt = ? AND key_num = (SELECT num FROM keys WHERE name =" \
          " 'reward/mean') ORDER BY step DESC LIMIT 20"  # fmt: skip
    points = [(row["step"], row["t"]) for row in store.rows(sql, (run.num, run.attempt)) if row["t"] is not None]
    job = job_of(store, run)
    return forecast(points, max_steps=run.max_steps, limit=job.end if job else None, last_checkpoint=run.last_checkpoint,
                    now=time.time())  # fmt: skip


def report_of(store: Store, run: Run) -> JobReport | None:
    """What the Run screen says about a run's job; None for a local run. Reads the database and the receipts only."""
    if run.cluster == "local":
        return None
    from molt_tui.services.runs import attempts

    job = store.rows("SELECT answered FROM slurm_jobs WHERE run_num = ?", (run.num,))
    call = store.rows("SELECT error FROM slurm_calls WHERE cluster = ? AND kind = 'jobs'", (run.cluster,))
    chain = tuple((a["attempt"], a["reason"], a["step"]) for a in attempts(store, run))
    return JobReport(run.cluster, submit.latest(run.directory), job_of(store, run), job[0]["answered"] if job else None,
                     (call[0]["error"] or "") if call else "", None if run.final else forecast_of(store, run), chain)  # fmt: skip


def needed_paths(config: Config, runs_root: Path) -> list[str]:
    """Paths that a run of this configuration reads or writes on its nodes, outside of a container."""
    from engine.datasets import GYM_PREFIX
    from molt_tui.slurm.render import library_root

    model = os.path.expanduser(config.actor.model_name_or_path)
    named = [*config.data.prompt_dataset, *config.eval.dataset]
    files = [os.path.expanduser(name) for name in named if not name.startswith(GYM_PREFIX)]
    own = [str(runs_root), str(library_root())] + ([config.slurm.python] if config.slurm.python else [])
    return list(dict.fromkeys(own + ([model] if os.path.isdir(model) else []) + files))


def paths_missing_on_node(slurm: Slurm, config: Config, paths: Sequence[str], seconds: float = 180.0) -> list[str]:
    """Which paths a compute node of the partition does not see; it takes a one-minute allocation of one CPU there."""
    place = {"partition": config.slurm.partition, "account": config.slurm.account, "qos": config.slurm.qos}
    options = [f"--{name}={value}" for name, value in place.items() if value]
    try:
        text = slurm.on_a_node(options, ["sh", "-c", 'for p; do test -e "$p" || echo "$p"; done', "sh", *paths], seconds)
    except (NoAnswer, SlurmError) as error:
        raise Refused(f"no compute node could be asked: {error}") from error
    return [line for line in text.splitlines() if line in set(paths)]


def refuse(findings: Sequence[Finding]) -> None:
    """Raise Refused with every finding that means that the job could never run."""
    fatal = [str(finding) for finding in findings if finding.refuse]
    if fatal:
        raise Refused("\n".join(fatal))
