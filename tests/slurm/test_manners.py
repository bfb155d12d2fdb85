"""How often Slurm is asked, and how long a refresh takes beside many jobs of others."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from engine.protocol import Meta, Status, write_record
from engine.wire import RunDir
from molt_tui.services import runs as run_service
from molt_tui.slurm import submit
from molt_tui.store.database import open_store
from tests.slurm.conftest import Desk, molt, wait_for


def counting_squeue(folder: Path, monkeypatch) -> Path:
    """Put a squeue first on the path that notes every call and goes on to the real one."""
    folder.mkdir()
    log = folder / "calls"
    log.touch()
    script = folder / "squeue"
    script.write_text(f'#!/bin/sh\necho "$(date +%s.%N) $*" >> {log}\nexec /usr/bin/squeue "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def live_runs(desk: Desk, count: int) -> None:
    """Runs whose jobs are alive; the jobs only sleep, the run directories say that they run."""
    for index in range(count):
        run = RunDir(desk.home.runs_root / f"live-{index}").create()
        argv = ["sbatch", "--parsable", "-N1", "-n1", "--mem=1", "-t", "10", "-o", "/dev/null", f"--job-name=molt-live-{index}",
                "--comment", f"molt:live-{index}.1", "--wrap", "sleep 600"]  # fmt: skip
        job = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        write_record(run.meta, Meta(run=run.path.name, name=run.path.name, created=time.time(), recipe="toy", cluster="testbed"))
        write_record(run.status, Status(run=run.path.name, attempt=0, beat=0, phase="queued"))
        submit.write(run, submit.Receipt(1, "submitted", job, t=time.time(), cluster="testbed"))


def test_few_squeue_calls_with_fifty_runs_and_two_programs(desk: Desk, tmp_path, monkeypatch):
    live_runs(desk, 50)
    log = counting_squeue(tmp_path / "bin", monkeypatch)
    ended = threading.Event()
    seconds = 62.0

    def screen() -> None:
        """What the app's own thread does: a refresh every second."""
        with open_store(desk.home) as store:
            while not ended.wait(1.0):
                run_service.refresh(store)

    thread = threading.Thread(target=screen)
    thread.start()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        assert molt("runs", "--json")[0] == 0
        time.sleep(2)
    ended.set()
    thread.join()
    times = [float(line.split()[0]) for line in log.read_text().splitlines()]
    print(f"squeue calls in {seconds:.0f} s with 50 live runs: {len(times)}")
    for first in times:
        assert sum(first <= t < first + 60 for t in times) <= 4
    assert 2 <= len(times) <= 5
    states = {run.state for run in run_service.list_runs(desk.store)}
    assert states <= {"starting", "queued"}


def test_ten_thousand_jobs_of_others_do_not_slow_a_refresh(desk: Desk):
    held = ["sbatch", "--parsable", "--hold", "-N1", "--mem=1", "-t", "10", "-o", "/dev/null"]
    subprocess.run([*held, "--array=1-10000", "--wrap", "true"], check=True, capture_output=True)
    for _ in range(1000):
        subprocess.run([*held, "--wrap", "true"], check=True, capture_output=True)
    live_runs(desk, 3)
    run_service.refresh(desk.store)
    slowest = 0.0
    for _ in range(3):
        began = time.monotonic()
        report = desk.ask_now()
        run_service.refresh(desk.store)
        slowest = max(slowest, time.monotonic() - began)
        assert report.asked and not report.error
    print(f"slowest refresh beside 11,000 jobs: {slowest * 1000:.0f} ms")
    assert slowest < 1.0
    subprocess.run(["scancel", "-u", str(os.getuid())], check=True)


def test_nothing_is_asked_when_nothing_lives(desk: Desk, tmp_path, monkeypatch):
    run = desk.launch(steps=3)
    desk.until(run, "completed")
    wait_for(lambda: desk.run(run) and desk.store.rows("SELECT 1 FROM slurm_jobs WHERE ended = 1"), 30, "the job's own end")
    log = counting_squeue(tmp_path / "bin", monkeypatch)
    for _ in range(3):
        with desk.store.write() as connection:
            connection.execute("UPDATE slurm_calls SET asked = 0")
        run_service.refresh(desk.store)
    assert log.read_text() == ""
