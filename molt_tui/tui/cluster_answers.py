"""`ClusterSource` over the services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from molt_tui.services import runs, steer
from molt_tui.slurm.parse import format_duration
from molt_tui.store.database import Store
from molt_tui.store.home import Home
from molt_tui.text import clean
from molt_tui.tui.cluster_view import ClusterView, JobRow, JobView, PartitionRow

if TYPE_CHECKING:
    from molt_tui.services import cluster as service


class ClusterAnswers:
    """A part of StoreSource."""

    home: Home

    if TYPE_CHECKING:

        @property
        def store(self) -> Store: ...

    def clusters(self) -> Sequence[ClusterView]:
        from molt_tui.services.cluster import overviews
        from molt_tui.slurm.commands import Slurm
        from molt_tui.slurm.site import read_site

        states = {run.id: run.state for run in runs.list_runs(self.store) if run.cluster != "local" and not run.final}
        found = overviews(self.store, Slurm(), read_site(self.home.path))
        return [_view(one, states) for one in found]

    def job(self, run_id: str) -> JobView | None:
        run = runs.get_run(self.store, run_id)
        if run.cluster == "local":
            return None
        from molt_tui.services.cluster import report_of

        report = report_of(self.store, run)
        return None if report is None else _job(report)

    def stacks(self, run_id: str) -> str:
        return clean(steer.stacks(self.store, runs.get_run(self.store, run_id)), lines=True)


def _view(one: service.Overview, states: dict[str, str]) -> ClusterView:
    partitions = tuple(
        PartitionRow(
            clean(p.name), p.default, clean(p.state), "no limit" if p.max_time is None else format_duration(p.max_time),
            tuple((clean(state), count) for state, count in sorted(p.by_state.items(), key=lambda item: -item[1])),
            tuple((clean(kind), p.free_gpus.get(kind, 0), count) for kind, count in sorted(p.gpus.items())),
            tuple((clean(node), clean(why)) for node, why in p.out),
        )
        for p in one.partitions
    )  # fmt: skip
    jobs = tuple(
        JobRow(job.run, clean(job.name), clean(job.job_id or ""), states.get(job.run, clean(job.state.lower())), clean(job.words),
               job.nodes, clean(job.node_list), job.start, job.end)
        for job in one.jobs
    )  # fmt: skip
    return ClusterView(clean(one.cluster), partitions, jobs, one.answered, clean(one.error), one.here)


def _job(report: service.JobReport) -> JobView:
    receipt, job, ahead = report.submission, report.job, report.forecast
    return JobView(
        cluster=clean(report.cluster), job_id=clean((job and job.job_id) or (receipt and receipt.job_id) or ""),
        submission=receipt.state if receipt else "", said=clean(receipt.message) if receipt else "",
        state=clean(job.state) if job else "", words=clean(job.words) if job else "",
        node_list=clean(job.node_list) if job else "",
        start=job.start if job else None, end=job.end if job else None, answered=report.answered, error=clean(report.error),
        forecast=clean(ahead.sentence) if ahead else "", enough=ahead.enough if ahead else None,
        attempts=tuple((number, clean(reason or ""), step) for number, reason, step in report.attempts),
    )  # fmt: skip
