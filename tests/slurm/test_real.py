"""Real vLLM, Ray and trainer on two nodes of a real Slurm: the demo, a time limit, two runs side by side."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from engine.wire import EventReader, RunDir
from tests.slurm.conftest import Cluster, Desk, assert_nothing_left, exits, near_the_limit, scontrol, trained, wait_for

SHORT = ("--placement.device", "cpu", "--tiny.warmup_steps", "40", "--eval.eval_at_start", "false", "--eval.eval_at_end", "false",
         "--eval.steps", "-1", "--slurm.nodes", "2", "--slurm.object_store_gb", "0.5")  # fmt: skip

pytestmark = pytest.mark.timeout(1400)


def launch(desk: Desk, *flags: str) -> RunDir:
    from molt_tui.services import slurm as service

    plan, site = service.make_plan(desk.home, "demo", [*SHORT, *flags])
    (done,) = service.launch(desk.store, desk.slurm, site, plan, say=desk.said.append)
    return RunDir(done.path)


def addresses(run: RunDir, number: int) -> dict[str, str]:
    nodes = [json.loads(path.read_text()) for path in (run.attempt(number) / "nodes").glob("*.json")]
    return {node["node"]: node["address"] for node in nodes}


def spoken_from(run: RunDir, number: int, actor: str) -> set[str]:
    """Addresses from which an actor's output came; Ray names only those that are not the driver's."""
    log = (run.attempt(number) / "logs" / "engine.log").read_text(errors="replace")
    return {ip or "here" for ip in re.findall(rf"\({actor} pid=\d+(?:, ip=([\d.]+))?\)", log)}


def test_the_demo_on_two_nodes(desk: Desk, cluster: Cluster):
    run = launch(desk, "--train.max_steps", "5", "--rollout.batch_size", "8")
    desk.until(run, "running", seconds=240)
    found = desk.until(run, "completed", seconds=240)
    assert (found.step, found.attempts) == (5, 1)
    assert_nothing_left(run)
    nodes = addresses(run, 1)
    assert set(nodes) == {"node1", "node2"}
    if "--netns" in cluster.options:  # otherwise both nodes have one address
        assert spoken_from(run, 1, "Trainer") == {nodes["node2"]}
        assert spoken_from(run, 1, "VllmEngine") == {"here"}
    points = desk.store.rows("SELECT step FROM metric_curve WHERE run = ? AND key = 'reward/mean' ORDER BY step", (found.id,))
    assert [row["step"] for row in points] == [1, 2, 3, 4, 5]


def test_a_time_limit_is_outlived(desk: Desk):
    steps, began = 60, time.monotonic()
    run = launch(desk, "--slurm.time", "10", "--slurm.signal_seconds", "120", "--train.max_steps", str(steps),
                 "--rollout.batch_size", "16", "--ckpt.save_steps", "20")  # fmt: skip
    wait_for(lambda: (desk.run(run).step or 0) >= 5, 300, "step 5")
    near_the_limit(desk.job_id(run), int(time.monotonic() - began))
    found = desk.until(run, "queued", seconds=120)
    assert found.step is not None and 5 <= found.step < steps
    scontrol("update", f"JobId={desk.job_id(run)}", "TimeLimit=10")
    found = desk.until(run, "completed", seconds=400)
    assert (found.step, found.attempts) == (steps, 2)
    assert [record["reason"] for record in exits(run)] == ["timeout", "completed"]
    assert "time limit" in exits(run)[0]["detail"]
    ledger = trained(run)
    assert sorted(ledger) == list(range(1, steps + 1))
    prompts = [prompt for step in sorted(ledger) for prompt in ledger[step]]
    assert len(prompts) == len(set(prompts))
    curve = desk.store.rows("SELECT step FROM metric_curve WHERE run = ? AND key = 'reward/mean' ORDER BY step", (found.id,))
    assert [row["step"] for row in curve] == list(range(1, steps + 1))
    assert_nothing_left(run)


def test_two_runs_on_the_same_nodes(desk: Desk, tmp_path: Path, monkeypatch):
    """Two real Rays side by side; each sees only its own two nodes, and the end of one leaves the other alone."""
    python = Path(__file__).parent / "ray_python.sh"
    runs = [desk.launch("--slurm.python", str(python), "--slurm.object_store_gb", "0.3", "--slurm.cpus_per_task", "3", steps=1,
                        seconds=seconds) for seconds in (1, 15)]  # fmt: skip
    first, second = runs
    desk.until(first, "completed", seconds=180)
    wait_for(lambda: (second.path / "ray-nodes.json").exists(), 120, "the second run's nodes")
    assert not (second.attempt(1) / "exit.json").exists()
    desk.until(second, "completed", seconds=180)
    seen = [json.loads((run.path / "ray-nodes.json").read_text()) for run in runs]
    assert all(len(nodes) == 2 for nodes in seen)
    ports = [json.loads((run.attempt(1) / "ray.json").read_text())["address"] for run in runs]
    assert ports[0] != ports[1]
    for run in runs:
        assert not (run.attempt(1) / "ray.token").exists()
        assert_nothing_left(run)


def test_events_reach_the_login_node_while_the_run_is_live(desk: Desk):
    run = desk.launch(steps=30, seconds=0.3)
    desk.until(run, "running")
    seen = wait_for(lambda: [e for e in EventReader(run.attempt(1) / "events").poll() if e["kind"] == "metrics"], 30, "metrics")
    assert seen and desk.run(run, ask=False).state == "running"
