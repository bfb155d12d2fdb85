"""What the screens ask about clusters and jobs, against a Slurm that answers as told."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from engine.protocol import ExitRecord, Meta, Status, write_record
from engine.wire import RunDir
from molt_tui.errors import Refused
from molt_tui.services import cluster, control, runs, steer
from molt_tui.slurm import poll, submit
from molt_tui.slurm.commands import NoAnswer
from molt_tui.slurm.parse import Node, Partition
from molt_tui.slurm.site import Site
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest

PARTITION = Partition("gpu", True, True, "UP", 3600.0, None, None, 1, 2, 64, None, None, (), None, "n[1-2]", {}, "OFF", 0.0)
NODE = Node("n1", ("MIXED",), 32, 8, 1000, ("gpu",), (), {"h100": 8}, {"h100": 3}, "", "24.05")
NODES = [NODE, replace(NODE, name="n2", states=("IDLE", "DRAIN"), gpus_used={}, reason="thermal test")]


class FakeSlurm:
    """Counts what it is asked; `silent` gives no answer."""

    def __init__(self) -> None:
        self.silent, self.calls, self.cancelled = False, 0, []

    def _answer(self, value):
        self.calls += 1
        if self.silent:
            raise NoAnswer("Unable to contact slurm controller")
        return value

    def config(self):
        return self._answer({"ClusterName": "alps"})

    def partitions(self):
        return self._answer([PARTITION])

    def nodes(self):
        return self._answer(NODES)

    def cancel(self, job_id):
        self.cancelled.append(job_id)


@pytest.fixture
def store(tmp_path):
    with open_store(Home(tmp_path / "home", tmp_path / "runs").create()) as opened:
        yield opened


@pytest.fixture
def slurm(monkeypatch):
    fake = FakeSlurm()
    monkeypatch.setattr("molt_tui.slurm.commands.Slurm", lambda: fake)
    return fake


def make_run(store, name: str, where: str = "alps", phase: str = "queued") -> runs.Run:
    run = RunDir(store.home.runs_root / name).create()
    write_record(run.meta, Meta(run=name, name=name, created=time.time(), recipe="x", cluster=where))
    write_record(run.status, Status(run=name, attempt=0, beat=0, phase=phase))
    if where != "local":
        submit.write(run, submit.Receipt(1, "submitted", "7", t=time.time(), cluster=where))
        ingest(store, [run.path], rollouts=False)
        poll.remember_submission(store, runs.get_run(store, name).num, where, submit.latest(run), time.time())
    ingest(store, [run.path], rollouts=False)
    return runs.get_run(store, name)


SITE = Site(None)


def test_free_gpus_nodes_out_of_service_and_own_jobs(store, slurm):
    make_run(store, "r1")
    (view,) = cluster.overviews(store, slurm, SITE)
    (gpu,) = view.partitions
    assert (gpu.gpus, gpu.free_gpus, gpu.out) == ({"h100": 16}, {"h100": 5}, (("n2", "IDLE DRAIN thermal test"),))
    assert gpu.by_state == {"mixed": 1, "drain": 1}
    assert [(job.run, job.job_id) for job in view.jobs] == [("r1", "7")] and view.here


def test_a_silent_controller_is_asked_less_and_less_and_the_old_answer_stays(store, slurm, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(cluster.time, "time", lambda: clock[0])
    cluster.overviews(store, slurm, SITE)
    slurm.silent, slurm.calls = True, 0
    clock[0] += 60
    for _ in range(20):
        (view,) = cluster.overviews(store, slurm, SITE)
    assert slurm.calls == 1 and view.partitions and view.answered == 1000.0
    assert view.error == "Unable to contact slurm controller"
    for _ in range(600):
        clock[0] += 1
        cluster.overviews(store, slurm, SITE)
    assert slurm.calls <= 6
    slurm.silent = False
    clock[0] += 300
    (view,) = cluster.overviews(store, slurm, SITE)
    assert view.answered == clock[0] and view.error == ""


def test_no_slurm_at_all_and_another_cluster_as_last_seen(store, slurm):
    make_run(store, "old-run", "old")
    poll.cached(store, "old", "hardware", 30, lambda: {"partitions": [vars(PARTITION)], "nodes": [vars(NODE)]}, 500.0)
    slurm.silent = True
    here, old = cluster.overviews(store, slurm, SITE)
    assert (here.cluster, here.answered) == ("", None) and "Unable to contact" in here.error
    assert (old.cluster, old.here, old.answered, old.partitions[0].name) == ("old", False, 500.0, "gpu")
    assert [job.run for job in old.jobs] == ["old-run"]


def test_a_waiting_job_is_cancelled_through_slurm(store, slurm):
    run = make_run(store, "r1")
    assert steer.steer(store, run, "stop") == "r1 has stopped"
    assert slurm.cancelled == ["7"]
    with pytest.raises(Refused, match="is stopped through Slurm there"):
        control.stop(run)


def test_a_job_of_another_cluster_is_left_alone(store, slurm):
    run = make_run(store, "far", "elsewhere")
    with pytest.raises(Refused, match="launched on elsewhere; go to a login node of it, this one is alps"):
        steer.steer(store, run, "stop")
    with pytest.raises(Refused, match="go to a login node"):
        steer.steer(store, run, "requeue")
    assert slurm.cancelled == []


def test_stacks_of_what_does_not_run_on_slurm(store, slurm):
    with pytest.raises(Refused, match="runs on this machine"):
        steer.stacks(store, make_run(store, "here", "local"))
    with pytest.raises(Refused, match="needs a running Slurm job"):
        steer.stacks(store, make_run(store, "r1"))


def test_the_report_of_a_job(store, slurm):
    run = make_run(store, "r1")
    report = cluster.report_of(store, run)
    assert (report.cluster, report.submission.state, report.job.job_id, report.error) == ("alps", "submitted", "7", "")
    assert cluster.report_of(store, make_run(store, "here", "local")) is None
    directory = run.directory
    directory.attempt(1).mkdir(parents=True)
    write_record(
        directory.attempt(1) / "exit.json", ExitRecord(run="r1", attempt=1, reason="timeout", code=0, last_step=40, t=1.0)
    )
    ingest(store, [run.path], rollouts=False)
    assert cluster.report_of(store, runs.get_run(store, "r1")).attempts[0][:2] == (1, "timeout")


def test_a_run_that_reports_by_itself_is_asked_for_at_the_pace_of_a_running_one(store, slurm):
    run = make_run(store, "r1")
    slurm.jobs = lambda ids: slurm._answer([])
    slurm.ended = lambda job_id: None
    assert poll.poll(store, slurm, "alps", clock=lambda: 1000.0).asked
    poll.remember_submission(store, run.num, "alps", submit.latest(run.directory), 1000.0)
    assert not poll.poll(store, slurm, "alps", clock=lambda: 1020.0).asked
    with store.write() as connection:
        connection.execute("UPDATE runs SET state = 'starting' WHERE num = ?", (run.num,))
    assert poll.poll(store, slurm, "alps", clock=lambda: 1020.0).asked
