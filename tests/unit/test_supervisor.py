"""The supervisor with a fake controller: every end of an attempt, and no process left behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import processes, protocol, supervisor
from engine.wire import EventReader, RunDir
from tests.records import read_exit, read_status
from tests.supervised import start_supervisor, until


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir(tmp_path / "run").create()
    run.run_toml.write_text("[train]\n")
    return run


@pytest.fixture
def start(run):
    """Starts a supervisor of `run` in its own process; its controller is killed at the end."""
    started: list[subprocess.Popen] = []

    def start(mode: str, grace: float = 20) -> subprocess.Popen:
        started.append(start_supervisor(run, mode, grace))
        return started[-1]

    yield start
    for process in started:
        processes.kill_until_gone(lambda pid=process.pid: processes.descendants(pid), 5)
        process.wait(15)
    processes.kill_until_gone(lambda: of_run(run), 5)


def of_run(run: RunDir) -> set[int]:
    return processes.marked(lambda value: value.startswith(f"{run.path}:"))


def ready(run: RunDir, attempt: int = 1) -> bool:
    return (run.attempt(attempt) / "ready").exists()


def phases(run: RunDir, attempt: int = 1) -> list[str]:
    events = EventReader(run.attempt(attempt) / "supervisor").poll()
    return [event["phase"] for event in events if event["kind"] == "phase"]


def alive(pid: int) -> bool:
    return pid in {p for p, _ in processes._living()}


def test_normal_end(run, start):
    assert start("ends").wait(15) == 0
    record, status = read_exit(run, 1), read_status(run)
    assert (record.reason, record.code, record.step, record.resumable) == ("completed", 0, 5, False)
    assert (status.phase, status.attempt, status.step, status.max_steps) == ("completed", 1, 5, 5)
    assert phases(run) == ["starting", "completed"] and of_run(run) == set()


def test_status_follows_progress_and_beats(run, start):
    start("stops")
    until(lambda: (s := read_status(run)) and s.phase == "running" and s.step == 1)
    beat = read_status(run).beat
    until(lambda: read_status(run).beat > beat + 1)


@pytest.mark.parametrize(
    ("mode", "detail"), [("raises", "RuntimeError: no memory for the model"), ("reports", "RunFailed: too many rollouts failed")]
)
def test_failure_names_the_error_in_one_line(run, start, mode, detail):
    assert start(mode).wait(15) == 1
    record, status = read_exit(run, 1), read_status(run)
    assert (record.reason, record.code, record.detail) == ("failed", 1, detail)
    assert (status.phase, status.last_error) == ("failed", detail)


def test_a_controller_that_cannot_start_is_a_failure(run):
    assert supervisor.Supervisor(run, ["/nowhere/python"]).execute() == 1
    assert "No such file" in read_exit(run, 1).detail


@pytest.mark.parametrize(
    ("number", "reason", "code"),
    [(signal.SIGTERM, "cancelled", 130), (signal.SIGINT, "cancelled", 130), (signal.SIGUSR1, "preempted", 143)],
)
def test_signals_become_a_stop_with_checkpoint(run, start, number, reason, code):
    process = start("stops")
    until(lambda: ready(run))
    process.send_signal(number)
    assert process.wait(15) == code
    record = read_exit(run, 1)
    assert (record.reason, record.code, record.step, record.resumable) == (reason, 3, 2, True)
    assert record.detail == "stopped as asked" and phases(run) == ["starting", "stopping", reason]
    assert read_status(run).last_checkpoint == 2


def test_hang_is_killed_after_the_grace_time(run, start):
    process = start("hangs", grace=0.3)
    until(lambda: ready(run))
    process.terminate()
    assert process.wait(15) == 130
    record = read_exit(run, 1)
    assert (record.reason, record.signal, record.resumable) == ("cancelled", 9, False)
    assert "did not stop in time" in record.detail and of_run(run) == set()


def test_a_second_signal_does_not_wait_for_the_grace_time(run, start):
    process = start("hangs", grace=3600)
    until(lambda: ready(run))
    process.terminate()
    until(lambda: "stopping" in phases(run))
    until(lambda: process.send_signal(signal.SIGTERM) or process.poll() is not None)
    assert process.returncode == 130
    assert read_exit(run, 1).detail == "killed: a second SIGTERM asked for that"


def test_killed_controller_is_a_crash(run, start):
    process = start("daemon_and_wait")
    until(lambda: ready(run))
    daemon = int((run.attempt(1) / "daemon.pid").read_text())
    (controller,) = of_run(run) - {daemon}
    os.kill(controller, signal.SIGKILL)
    assert process.wait(15) == 1
    record = read_exit(run, 1)
    assert (record.reason, record.signal) == ("crashed", 9) and "SIGKILL" in record.detail
    assert not alive(daemon)


def test_an_orphan_that_left_the_session_and_ignores_term_is_gone_within_ten_seconds(run, start):
    process = start("daemon")
    until(lambda: (run.attempt(1) / "daemon.pid").exists())
    began = time.monotonic()
    assert process.wait(15) == 0
    assert time.monotonic() - began < 10
    assert not alive(int((run.attempt(1) / "daemon.pid").read_text()))


def test_killed_supervisor_takes_the_attempt_along_and_the_next_one_records_it(run, start):
    first = start("daemon_and_wait")
    until(lambda: ready(run))
    members = of_run(run)
    assert len(members) == 2
    scratch = Path((run.attempt(1) / "scratch").read_text())
    assert scratch.is_dir()
    first.kill()
    until(lambda: not any(alive(pid) for pid in members), 10)
    assert not scratch.exists()
    assert read_exit(run, 1) is None
    assert start("ends").wait(15) == 0
    assert read_exit(run, 1).reason == "crashed" and read_exit(run, 1).step == 1
    assert read_exit(run, 2).reason == "completed" and read_status(run).attempt == 2


def test_a_live_run_refuses_a_second_supervisor(run, start):
    first = start("stops")
    until(lambda: ready(run))
    second = subprocess.run([sys.executable, "-m", "engine.supervisor", str(run.path)], capture_output=True, text=True)
    assert second.returncode == 2 and second.stdout == ""
    assert second.stderr.startswith("refused: run is already running: attempt 1, supervisor pid")
    assert second.stderr.count("\n") == 1
    assert run.attempt_numbers() == [1] and first.poll() is None


def test_two_supervisors_at_the_same_moment(run, start):
    both = [start("stops") for _ in range(2)]
    until(lambda: any(ready(run, n) for n in run.attempt_numbers()))
    until(lambda: any(p.poll() is not None for p in both))
    assert sum(p.poll() is None for p in both) == 1 and run.attempt_numbers() == [1]


def test_liveness_on_another_host_is_a_beat_that_moves(run, monkeypatch):
    run.claim_attempt({**processes.identity(), "host": "elsewhere"})
    status = protocol.Status(run="run", attempt=1, beat=1, phase="running")
    protocol.write_record(run.status, status)
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.1)
    supervisor.check_idle(run)

    def beat(_seconds: float) -> None:
        status.beat += 1
        protocol.write_record(run.status, status)

    monkeypatch.setattr(supervisor.time, "sleep", beat)
    with pytest.raises(supervisor.Refused, match="on elsewhere"):
        supervisor.check_idle(run)


def test_a_reused_pid_or_a_reboot_is_not_a_live_supervisor():
    me = processes.identity()
    assert processes.is_alive(me)
    assert not processes.is_alive({**me, "start": me["start"] - 1})
    assert not processes.is_alive({**me, "boot": "another"})
    assert processes.is_alive({**me, "host": "another"}) is None


def test_a_full_disk_leaves_room_for_the_exit_record(run, start):
    process = start("stops")
    until(lambda: ready(run))
    reserve = run.attempt(1) / ".reserve"
    assert reserve.stat().st_size >= 64 * 1024
    process.terminate()
    assert process.wait(15) == 130 and not reserve.exists()


def test_a_failure_without_words_names_the_file_system_that_refused_to_write(run):
    watch = supervisor.Supervisor(run, [])
    watch.number, watch.ended = run.claim_attempt({}), 1
    watch._engine_log().write_text("a warning of long ago\n")
    with watch._surviving_a_full_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert watch._verdict() == ("failed", "the run directory could not be written: No space left on device")
    with watch._surviving_a_full_disk():
        pass
    assert watch._verdict() == ("failed", "a warning of long ago")


def test_not_a_run_directory(tmp_path, capsys):
    assert supervisor.main([str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_only_the_standard_library_is_imported():
    code = "import sys, engine.supervisor; print([m for m in sys.modules if m.split('.')[0] in ('pydantic', 'numpy', 'torch')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_attempt_that_ends_before_it_saves_still_has_the_checkpoint_of_the_one_before(run, start):
    for step, whole in ((49, True), (7, True), (60, False)):
        folder = run.checkpoints / f"step-{step:06d}"
        folder.mkdir(parents=True)
        if whole:
            (folder / "COMPLETE").touch()
    assert supervisor.Supervisor(run, ["/nowhere/python"]).execute() == 1
    status = read_status(run)
    assert (status.phase, status.step, status.last_checkpoint) == ("failed", 49, 49)
    start("raises").wait(15)
    status = read_status(run)
    assert (status.attempt, status.step, status.last_checkpoint) == (2, 1, 49), "its own step, the older checkpoint"


def test_checkpoints_elsewhere_make_a_run_resumable(run, tmp_path):
    run.run_toml.write_text(f'[ckpt]\npath = "{tmp_path}/saved"\n')
    mark = tmp_path / "saved" / "run" / "step-000004" / "COMPLETE"
    mark.parent.mkdir(parents=True)
    assert not supervisor.Supervisor(run, [])._resumable()
    mark.touch()
    assert supervisor.Supervisor(run, [])._resumable()


def test_a_family_holds_descendants_that_hide_their_marker(tmp_path):
    """As Ray's agents do: they overwrite their environment to show a title."""
    child = subprocess.Popen(["sh", "-c", "env -i sleep 60 & wait"], env={processes.MARKER: "here:1", "PATH": os.environ["PATH"]})
    try:
        until(lambda: len(processes.descendants(child.pid)) == 1)
        hidden = processes.descendants(child.pid)
        until(lambda: processes.marked(lambda value: value == "here:1") == {child.pid})
        assert processes.family(lambda value: value == "here:1") == {child.pid} | hidden
    finally:
        processes.kill_until_gone(lambda: processes.descendants(child.pid), 5)
        child.wait()


def test_the_time_left_is_what_slurm_told_the_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 600))
    assert 598 <= supervisor._time_left() <= 600
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert supervisor._time_left() is None
