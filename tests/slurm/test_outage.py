"""Slurm's controller down or hanging, while a run is submitted and while it runs."""

from __future__ import annotations

import subprocess
import threading

import pytest

from molt_tui.errors import MoltError, Refused
from molt_tui.services import runs as run_service
from molt_tui.services import slurm as service
from molt_tui.slurm import submit
from molt_tui.slurm.commands import Slurm
from tests.slurm.conftest import Cluster, Desk, assert_nothing_left, assert_trained_once, wait_for


def jobs_named(text: str) -> list[str]:
    done = subprocess.run(["squeue", "-h", "-t", "all", "-o", "%i %j"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if text in line]


def stop_at_submission(desk: Desk, cluster: Cluster, number: str) -> None:
    """Let the controller stop just before sbatch is called, after every check has passed."""
    original = desk.slurm.submit

    def submit_into_silence(*arguments):
        cluster.signal("slurmctld", number)
        return original(*arguments)

    desk.slurm.submit = submit_into_silence  # type: ignore[method-assign]


def test_a_hang_during_submission_makes_no_second_job(desk: Desk, cluster: Cluster):
    stop_at_submission(desk, cluster, "STOP")
    run = desk.launch(steps=8)
    desk.slurm = Slurm()
    receipt = submit.latest(run)
    assert receipt is not None and receipt.state == "unknown" and "timed out" in receipt.message
    found = run_service.get_run(desk.store, run.path.name)
    assert found.state == "queued" and "no answer" in found.detail
    with pytest.raises(Refused, match="got no answer yet"):
        service.requeue(desk.store, desk.slurm, service.read_site(desk.home.path), found)
    cluster.signal("slurmctld", "CONT")
    found = desk.until(run, "completed", seconds=90)
    receipt = submit.latest(run)
    assert receipt is not None and receipt.number == 1 and receipt.message == "found in the queue after no answer"
    assert jobs_named(run.path.name) == [receipt.job_id]
    assert_trained_once(run, 8)


def test_a_lost_submission_is_called_absent_and_can_be_repeated(desk: Desk, cluster: Cluster, monkeypatch):
    monkeypatch.setattr(submit, "ABSENT_SECONDS", 2.0)
    stop_at_submission(desk, cluster, "KILL")
    run = desk.launch(steps=8)
    desk.slurm = Slurm()
    receipt = submit.latest(run)
    assert receipt is not None and receipt.state == "unknown" and "Unable to contact" in receipt.message
    assert desk.run(run).state == "queued"
    cluster.mend()
    found = desk.until(run, "lost", seconds=60)
    assert "never got the request" in found.detail and jobs_named(run.path.name) == []
    service.requeue(desk.store, desk.slurm, service.read_site(desk.home.path), found)
    desk.until(run, "completed", seconds=60)
    assert len(jobs_named(run.path.name)) == 1


def test_a_dead_controller_before_the_submission_makes_nothing(desk: Desk, cluster: Cluster):
    desk.recipe()
    cluster.signal("slurmctld", "KILL")
    with pytest.raises(MoltError, match="does not answer"):
        desk.launch(steps=8)
    assert list(desk.home.runs_root.iterdir()) == []


@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_an_outage_during_a_run_loses_nothing(desk: Desk, cluster: Cluster, number: str):
    run = desk.launch(steps=180, seconds=0.2)
    # A controller that is killed before it saved a job's start launches it again; that is not what is tested here.
    wait_for(lambda: (desk.run(run).step or 0) > 30, 60, "some steps")
    cluster.signal("slurmctld", number)
    states = []
    asked = threading.Thread(target=lambda: desk_asks(desk))
    asked.start()
    for _ in range(20):
        states.append(desk.run(run, ask=False).state)
        wait_for(lambda: True, 1)
    asked.join(60)
    states.append(desk.run(run, ask=False).state)
    assert set(states) == {"running"}
    row = desk.store.rows("SELECT error, failures FROM slurm_calls WHERE kind = 'jobs'")[0]
    assert row["failures"] >= 1 and row["error"]
    if number == "STOP":
        cluster.signal("slurmctld", "CONT")
    cluster.mend()
    found = desk.until(run, "completed", seconds=120)
    assert found.attempts == 1
    assert_trained_once(run, 180)
    assert_nothing_left(run)


def desk_asks(desk: Desk) -> None:
    from molt_tui.slurm import poll
    from molt_tui.store.database import open_store

    with open_store(desk.home) as store:
        with store.write() as connection:
            connection.execute("UPDATE slurm_calls SET asked = 0 WHERE kind = 'jobs'")
        poll.poll(store, Slurm(), "testbed")
