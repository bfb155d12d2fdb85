"""The cluster: partitions, nodes by state, free GPUs, and own jobs with the runs they belong to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from molt_tui.text import clean
from molt_tui.tui import format, glyphs
from molt_tui.tui.cluster_view import ClusterView, JobRow, PartitionRow
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.controls import RunControls
from molt_tui.tui.screens.runs import update
from molt_tui.tui.source import RunLine
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.job_bar import moment
from molt_tui.tui.widgets.key_table import Column, KeyTable, Row

PARTITIONS = (Column("Partition", 14), Column("State", 6), Column("Limit", 11), Column("GPUs free", 18), Column("Nodes"))
WIDE_PARTITIONS = (Column("Partition", 22), Column("State", 8), Column("Limit", 14), Column("GPUs free", 40), Column("Nodes"))
JOBS = (Column("State", 11), Column("Run", 20), Column("Job", 8, True), Column("Why, or where"), Column("When", 16))
WIDE_JOBS = (Column("State", 11), Column("Run", 40), Column("Job", 9, True), Column("Why, or where"), Column("When", 24))
STALE_S = 120.0
# The screen looks again this often; Slurm itself is asked far less (services/cluster.py).
LEAST_S = 5.0


def partition_row(one: PartitionRow) -> Row:
    free = ", ".join(f"{kind} {free}/{total}" for kind, free, total in one.gpus) or "none"
    up = one.state.upper() == "UP"
    some = up and any(free for _, free, _ in one.gpus)
    nodes = ", ".join(f"{count} {state}" for state, count in one.nodes) or "no nodes"
    return Row(one.name, ((one.name + (" *" if one.default else ""), "bold"), (one.state.lower(), "" if up else "$text-warning"),
                          (one.limit, ""), (free, "$text-success" if some else "$quiet"),
                          (nodes, "$text-warning" if one.out else "")))  # fmt: skip


def job_row(job: JobRow, now: float) -> Row:
    look = glyphs.state_look(job.state)
    waits = job.state == "queued"
    where = job.words if waits or not job.node_list else job.node_list
    time_of = job.start if waits else job.end
    when = "" if time_of is None else f"{'starts' if waits else 'ends'} {moment(time_of, now)}"
    return Row(job.run, ((f"{look.glyph} {look.word}", look.style), (job.name, ""), (job.job_id or "?", ""), (where, ""),
                         (when, "$quiet")))  # fmt: skip


class ClusterScreen(RunControls, MoltScreen):
    TITLE = "Cluster"
    HELP = (
        "Partitions above, your jobs below; tab changes between them. enter on a job opens its run.\n\n"
        "GPUs free counts what no job holds on nodes in service. Slurm is asked about nodes every 30 s at most and about jobs"
        " every 15 s, by all molt-tui of yours together; the time on top says how old the answer is.\n\n"
        "Several clusters: ] goes to the next. One that this machine does not talk to is shown as it was last seen from here."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "other_table", "Jobs/partitions", id="cluster.table"),
        Binding("right_square_bracket", "next_cluster", "Next cluster", show=False, id="cluster.next"),
        *(replace(one, show=one.id == "run.stop") for one in RunControls.CONTROLS if one.id != "run.cluster"),
        Binding("escape,backspace", "back", "Back", id="cluster.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.views: Sequence[ClusterView] = ()
        self.shown = ""
        self.asking = False
        self.asked = -LEAST_S
        self.error = ""

    def compose(self) -> ComposeResult:
        yield Static("", id="top", markup=False)
        yield Static("", id="trouble", markup=False)
        yield KeyTable(PARTITIONS, id="partitions", empty="  asking Slurm ...", opens=False)
        yield KeyTable(JOBS, id="jobs", empty="")
        yield Static("", id="about", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#trouble").display = False
        self.jobs.focus()

    @property
    def jobs(self) -> KeyTable:
        return self.query_one("#jobs", KeyTable)

    @property
    def partitions(self) -> KeyTable:
        return self.query_one("#partitions", KeyTable)

    @property
    def view(self) -> ClusterView | None:
        return next((view for view in self.views if view.name == self.shown), self.views[0] if self.views else None)

    @property
    def selected(self) -> RunLine | None:
        job = self._job()
        return None if job is None else RunLine(job.run, job.name, job.state, job_id=job.job_id)

    def _job(self) -> JobRow | None:
        view = self.view
        return next((job for job in view.jobs if job.run == self.jobs.cursor_key), None) if view else None

    def look(self) -> None:
        """A controller that hangs holds up its own thread only, and one question at a time."""
        if not self.asking and time.monotonic() - self.asked >= LEAST_S:
            self.asking, self.asked = True, time.monotonic()
            self.molt.background.act(self, "clusters", self.molt.source.clusters)

    def answered(self, topic: str, value: Any) -> None:
        self.asking, self.error, self.views = False, "", value
        self.fill()

    def failed(self, topic: str, error: str) -> None:
        if topic == "clusters":
            self.asking = False
        self.error = clean(error)
        self.fill()

    def on_resize(self, event: events.Resize) -> None:
        wide = event.size.width >= 120
        self.partitions.set_columns(WIDE_PARTITIONS if wide else PARTITIONS)
        self.jobs.set_columns(WIDE_JOBS if wide else JOBS)

    def fill(self) -> None:
        view, now = self.view, time.time()
        self._show_trouble(view)
        update(self.query_one("#top", Static), self._top(view, now))
        if view is None:
            return
        known = view.answered is not None
        self.partitions.set_empty("  no partition" if known else "  nothing known: Slurm has not answered")
        self.partitions.set_rows([partition_row(one) for one in view.partitions])
        self.partitions.styles.height = min(len(view.partitions) + 1, 9) if view.partitions else 4
        self.jobs.set_empty("  none of your runs has a job here; n on the Runs screen launches one")
        self.jobs.set_rows([job_row(job, now) for job in view.jobs])
        self._show_about()

    def _show_trouble(self, view: ClusterView | None) -> None:
        """Why what is shown is old, in a line of its own that is there only then."""
        words = self.error or (view.error if view else "")
        content = Content.styled(f"{glyphs.MARK['critical']} {words}", "bold $text-error")
        if not words and view is not None and not view.here:
            words = "this machine does not talk to it: as it was last seen from here"
            content = Content.styled(f"{glyphs.MARK['info']} {words}", "$quiet")
        line = self.query_one("#trouble", Static)
        line.display = bool(words)
        update(line, content)

    def _top(self, view: ClusterView | None, now: float) -> Content:
        name = view.name or "no cluster" if view else ""
        several = f" ({[v.name for v in self.views].index(view.name) + 1} of {len(self.views)}, ] next)" \
            if view and len(self.views) > 1 else ""  # fmt: skip
        age = None if view is None or view.answered is None else now - view.answered
        seen = "" if age is None else f"as of {format.age(age)} ago" if age < 86400 else f"as of {moment(now - age, now)}"
        late = age is not None and age > STALE_S
        return Content.assemble((" Cluster ", "bold reverse"), "  ", (name, "bold"), several, "  ",
                                (seen, "bold $text-warning" if late else "$quiet"))  # fmt: skip

    def _show_about(self) -> None:
        view = self.view
        words = ""
        if view is not None and self.partitions.has_focus:
            one = next((p for p in view.partitions if p.name == self.partitions.cursor_key), None)
            out = [f"{node}: {why}" for node, why in one.out] if one else []
            more = f"  and {len(out) - 2} more" if len(out) > 2 else ""
            words = "\n".join(out[:2]) + more if out else "every node of it is in service" if one else ""
        elif (job := self._job()) is not None:
            count = f"{job.nodes} nodes" if job.nodes and job.nodes > 1 else "1 node" if job.nodes else ""
            words = "\n".join([f"{job.run}  job {job.job_id or 'not known yet'}  {count}", job.words or job.node_list])
        update(self.query_one("#about", Static), Content.styled(words, "$quiet"))
        self.offer()

    @on(KeyTable.Highlighted)
    def _highlighted(self) -> None:
        self._show_about()

    @on(events.DescendantFocus)
    def _focused(self) -> None:
        self._show_about()

    @on(KeyTable.Chosen, "#jobs")
    def _chosen(self, event: KeyTable.Chosen) -> None:
        self.molt.open_run(event.key)

    def action_other_table(self) -> None:
        (self.jobs if self.partitions.has_focus else self.partitions).focus()

    def action_next_cluster(self) -> None:
        view = self.view
        if view is not None and len(self.views) > 1:
            names = [one.name for one in self.views]
            self.shown = names[(names.index(view.name) + 1) % len(names)]
            self.fill()

    def action_back(self) -> None:
        self.molt.go_back()
