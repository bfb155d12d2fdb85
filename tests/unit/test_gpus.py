import os

import pytest

from engine.gpus import GpuMonitor


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    """Two GPUs of which one cannot tell its use; two samples each."""
    program = tmp_path / "nvidia-smi"
    lines = "0, 50, 20, 80\n1, [N/A], 20, 80\n0, 100, 40, 80\n"
    program.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_means_since_the_last_call(fake_smi):
    monitor = GpuMonitor()
    assert monitor.take() == {}
    monitor._thread.join(10)  # the program has ended
    found = monitor.take()
    assert found["host/gpu_util/mean"] == 0.75 and found["host/gpu_util/worst"] == "gpu-0"
    assert found["host/gpu_mem/max"] == pytest.approx(0.375)


def test_nothing_is_reported_without_gpus(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert GpuMonitor().take() == {}
