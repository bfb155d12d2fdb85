"""The supervisor of a job start: it asks Slurm why at the signal, and the exit record has that reason when it appears."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from engine.wire import RunDir
from slurm import job as job_module
from slurm.allocation import Job, outside
from slurm.decide import Action
from slurm.job import JobSupervisor

PREEMPTED = {"JobState": "RUNNING", "PreemptTime": "2026-01-01T00:00:00"}
LIMIT = {"JobState": "COMPLETING", "RunTime": "01:00:01", "TimeLimit": "01:00:00"}


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a supervisor whose Slurm answers with one record, and with the names of lost nodes."""

    def make(record: dict[str, str], lost: str = "") -> JobSupervisor:
        run = RunDir(tmp_path / "run").create()
        monkeypatch.setattr(job_module, "show_job", lambda *_: record)
        monkeypatch.setattr(job_module, "lost_nodes", lambda *_: lost)
        return JobSupervisor(run, Job("7", 0, "n[1-2]", 2), 18.0, 240.0, lambda: Action("restart", "killed", wait=10.0))

    return make


@pytest.mark.parametrize(
    ("number", "record", "ended", "expected"),
    [
        (signal.SIGUSR1, PREEMPTED, ("preempted", "saved"), ("preempted", "a job of higher priority took the nodes; saved")),
        (signal.SIGUSR1, {}, ("preempted", "saved"), ("timeout", "the time limit came near; saved")),
        (signal.SIGUSR1, {}, ("crashed", "killed by SIGKILL"), ("timeout", "the time limit came near")),
        (signal.SIGTERM, LIMIT, ("cancelled", "saved"), ("timeout", "the time limit was reached")),
        (signal.SIGTERM, {"JobState": "CANCELLED"}, ("failed", "Ray is gone"), ("cancelled", "the job was cancelled")),
        (signal.SIGTERM, {"JobState": "CANCELLED"}, ("completed", ""), ("completed", "")),
    ],
)
def test_slurm_says_why(supervisor, number, record, ended, expected):
    found = supervisor(record)
    assert found.explain(*ended) == ended
    found.signalled(number)
    found.signalled(signal.SIGTERM)  # what follows the first signal changes nothing
    assert found.explain(*ended) == expected
    assert found.grace == (18.0 if number == signal.SIGTERM else 240.0)


def test_a_run_that_goes_on_is_not_shown_as_ended(supervisor):
    found = supervisor({})
    assert found.outlook("failed", "killed") == ("starting", "crashed (killed); starts again in 10 s")
    found.decide = lambda: Action("requeue", "the time limit came near")
    assert found.outlook("timeout", "x") == ("queued", "requeued: the time limit came near")
    found.decide = lambda: Action("end", "")
    assert found.outlook("completed", "") == ("completed", "")


@pytest.mark.parametrize(("lost", "words"), [("n2", "the job lost n2"), ("", "Slurm requeued the job")])
def test_a_lost_node_is_named(supervisor, lost, words):
    found = supervisor({"JobState": "PENDING", "Restarts": "1"}, lost)
    found.signalled(signal.SIGTERM)
    assert found.explain("cancelled", "") == ("preempted", words)


def test_a_successor_is_submitted_as_from_outside_of_the_job():
    inside = {
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "n1",
        "SLURM_CONF": "/etc/slurm.conf",
        "PATH": "/bin",
        "MOLT_RUN": "/r",
    }
    assert outside(inside) == {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", "MOLT_RUN": "/r"}
