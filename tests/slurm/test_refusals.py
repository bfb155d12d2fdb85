"""What can never run is refused before anything is made: exit code 2, one line, no run directory, no job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from molt_tui.services import cluster as clusters
from molt_tui.services import slurm as service
from molt_tui.slurm.commands import Slurm
from tests.slurm.conftest import Cluster, Desk, make_desk, molt, wait_for


def refused(desk: Desk, *flags: str) -> str:
    """Launch with flags from the command line; the refusal's text."""
    code, out, err = molt("launch", str(desk.recipe()), "--on", "slurm", *flags)
    assert (code, out) == (2, ""), (code, out, err)
    assert list(desk.home.runs_root.iterdir()) == []
    queue = subprocess.run(["squeue", "-h", "-t", "all", "-o", "%j"], capture_output=True, text=True, check=True).stdout
    assert "molt-" not in queue
    return err


@pytest.fixture
def fresh(desk: Desk, cluster: Cluster) -> Desk:
    """A desk on a queue that remembers no job of an earlier test."""
    for job in Slurm().own_jobs():
        subprocess.run(["scancel", job.id], check=True)
    cluster.call("stop")
    cluster.start()
    return desk


def test_what_the_cluster_cannot_give(fresh: Desk):
    assert "there is no partition 'debgu'; did you mean debug?" in refused(fresh, "--slurm.partition", "debgu")
    assert "3 nodes are more than debug gives one job (2)" in refused(fresh, "--slurm.nodes", "3")
    assert "above the limit of short, 00:05:00" in refused(fresh, "--slurm.partition", "short", "--slurm.time", "00:06:00")
    assert "takes no jobs now (state DOWN)" in refused(fresh, "--slurm.partition", "closed")
    assert "has no 'h100'; it has gpu" in refused(fresh, "--slurm.gpus_per_node", "1", "--slurm.gpu_type", "h100")
    assert "the most is 2" in refused(fresh, "--slurm.gpus_per_node", "3")
    assert "the most is 16000" in refused(fresh, "--slurm.mem", "64G")
    assert "Slurm refuses the job" in refused(fresh, "--slurm.extra=--nodelist=nowhere")
    assert "Slurm refuses the job" in refused(fresh, "--slurm.reservation", "nothing")
    assert "is not set here" in refused(fresh, "--slurm.env", "NO_SUCH_VARIABLE")


@pytest.fixture
def limited_desk(limited_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("SLURM_CONF", limited_cluster.conf)
    yield from make_desk(tmp_path, monkeypatch)


def test_what_the_account_does_not_allow(limited_desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk = limited_desk
    assert "you have no account 'nobody'" in refused(desk, "--slurm.account", "nobody")
    assert "you have no account 'lab2'" in refused(desk, "--slurm.account", "lab2")
    above = "01:00:00 is above the limit of account lab, 00:30:00"
    assert above in refused(desk, "--slurm.account", "lab", "--slurm.time", "01:00:00")
    # Where nobody may read the limit, Slurm takes the job and never starts it: that is said as soon as Slurm says it.
    monkeypatch.setattr(Slurm, "associations", lambda *_: [])
    with desk.store.write() as connection:
        connection.execute("DELETE FROM slurm_calls WHERE kind = 'associations'")
    stuck = desk.launch("--slurm.account", "lab", "--slurm.time", "01:00:00", steps=5)
    found = wait_for(lambda: (r := desk.run(stuck)).detail.startswith("it cannot start") and r, 30, "a reason")
    assert found.state == "queued" and "your account allows less time" in found.detail
    assert "it cannot start: your account allows less time" in molt("show", stuck.path.name)[1]
    assert f"{stuck.path.name}: it cannot start: your account" in "".join(molt("runs")[1:])
    assert service.stop(desk.store, desk.slurm, found)


def test_a_run_on_an_account_is_seen_in_accounting(limited_desk: Desk):
    desk = limited_desk
    run = desk.launch("--slurm.account", "lab", steps=5)
    desk.until(run, "completed", seconds=60)
    ended = wait_for(lambda: (e := desk.slurm.ended(desk.job_id(run))) and e.end and e, 60, "the end in accounting")
    assert (ended.state, ended.code) == ("COMPLETED", 0)


def test_paths_that_a_node_does_not_see(desk: Desk, cluster: Cluster, tmp_path: Path):
    if "--netns" not in cluster.options:
        pytest.skip("needs nodes with mounts of their own, which only root can make")
    here = tmp_path / "only-here"
    here.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(here)], check=True)  # after the nodes took their mounts
    try:
        (here / "data.jsonl").touch()
        asked = [str(tmp_path), str(here / "data.jsonl"), "/nowhere/a b"]
        assert all(Path(path).exists() for path in asked[:2])
        plan, _ = service.make_plan(desk.home, str(desk.recipe()), [])
        assert clusters.paths_missing_on_node(desk.slurm, plan.runs[0].config, asked) == asked[1:]
        found = molt("stage", str(desk.recipe()), "--check", "--data.prompt_dataset", str(here / "data.jsonl"))
        assert found[:2] == (1, f"a compute node does not see {here}/data.jsonl\n")
        assert molt("stage", str(desk.recipe()), "--check")[0] == 0
    finally:
        subprocess.run(["umount", str(here)], check=True)


def test_a_site_profile_is_proposed(desk: Desk, cluster: Cluster, monkeypatch):
    (desk.home.path / "site.toml").unlink()
    monkeypatch.setenv("SCRATCH", str(desk.home.path.parent))
    code, out, err = molt("launch", str(desk.recipe()), "--on", "slurm")
    assert code == 2 and "no runs_root is set" in err
    code, out, _ = molt("doctor", "--write-site")
    assert code == 0
    assert f'runs_root = "{desk.home.path.parent}/molt-tui/runs"  # from $SCRATCH' in out
    assert 'cluster = "testbed"' in out and 'partition = "debug"' in out and "gpus_per_node = 2" in out
    site = service.read_site(desk.home.path)
    assert site.slurm["partition"] == "debug" and site.cluster == "testbed"
    assert molt("doctor", "--write-site")[0] == 2  # never replaced
