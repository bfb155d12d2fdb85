"""What a job and its user can do besides what test_survive.py shows. Engine and Ray are stand-ins here."""

from __future__ import annotations

import json
import subprocess

from molt_tui.services import slurm as service
from molt_tui.slurm import submit
from tests.slurm.conftest import Desk, assert_nothing_left, assert_trained_once, exits, occupy, scontrol, wait_for


def test_a_run_completes(desk: Desk):
    run = desk.launch(steps=8)
    found = desk.until(run, "completed")
    assert (found.step, found.attempts, found.cluster) == (8, 1, "testbed")
    assert found.job_id == desk.job_id(run)
    assert_trained_once(run, 8)
    assert_nothing_left(run)
    assert any("expects a start at" in line for line in desk.said) and any("is job" in line for line in desk.said)


def test_the_restart_budget_ends(desk: Desk):
    run = desk.launch("--slurm.max_restarts", "1", steps=20, save=100, crash={"1": 1, "2": 1, "3": 1})
    found = desk.until(run, "failed", seconds=60)
    # The first crash came after a new step, the second after none; in between the run was never shown as ended.
    assert found.attempts == 2 and "SIGKILL" in found.detail
    assert_nothing_left(run)


def test_requeue_by_hand_goes_on(desk: Desk):
    run = desk.launch(steps=60, seconds=0.2)
    wait_for(lambda: (run.checkpoints / "step-000005" / "COMPLETE").exists(), 60, "first checkpoint")
    subprocess.run(["scontrol", "requeue", desk.job_id(run)], check=True)
    waiting = wait_for(lambda: (r := desk.run(run)).state == "queued" and r, 60, "being queued again")
    assert "requeued" in waiting.detail or "starts again" in waiting.detail
    found = desk.until(run, "completed", seconds=120)
    assert found.attempts == 2 and found.job_id == desk.job_id(run)
    assert exits(run)[0]["reason"] == "preempted" and "requeued" in exits(run)[0]["detail"]
    assert_trained_once(run, 60)
    assert_nothing_left(run)


def test_a_successor_goes_on_where_requeueing_is_off(desk: Desk):
    run = desk.launch(steps=30, seconds=0.2)
    wait_for(lambda: (run.checkpoints / "step-000005" / "COMPLETE").exists(), 60, "first checkpoint")
    first = desk.job_id(run)
    scontrol("update", f"JobId={first}", "Requeue=0")
    subprocess.run(["scancel", "--batch", "--signal=USR1", first], check=True)  # as before a time limit
    found = desk.until(run, "completed", seconds=120)
    receipt = submit.latest(run)
    assert receipt is not None and receipt.number == 2
    assert f"--dependency=afterany:{first}" in json.loads((submit.folder(run) / "2.json").read_text())["command"]
    assert found.attempts == 2 and found.job_id == receipt.job_id != first
    assert exits(run)[0]["reason"] == "timeout" and "time limit came near" in exits(run)[0]["detail"]
    assert_trained_once(run, 30)
    assert_nothing_left(run)


def test_stop_saves_and_requeue_goes_on(desk: Desk):
    run = desk.launch(steps=60, seconds=0.1)
    desk.until(run, "running")
    found = desk.run(run)
    assert service.stop(desk.store, desk.slurm, found, command_s=1.0, say=desk.said.append)
    found = desk.until(run, "cancelled", seconds=60)
    assert_nothing_left(run)
    receipt = service.requeue(desk.store, desk.slurm, service.read_site(desk.home.path), found)
    assert (receipt.number, receipt.state) == (2, "submitted")
    desk.until(run, "completed", seconds=120)
    assert_trained_once(run, 60)


def test_a_waiting_run_is_cancelled_in_the_queue(desk: Desk):
    blocker = occupy(seconds=300)
    run = desk.launch(steps=5)
    found = wait_for(lambda: (r := desk.run(run)).detail and r.detail != "submitted" and r, 30, "a reason")
    assert found.state == "queued" and ("free" in found.detail or "priority" in found.detail)
    assert service.stop(desk.store, desk.slurm, found, say=desk.said.append)
    assert desk.run(run).state == "cancelled"
    subprocess.run(["scancel", blocker], check=True)
