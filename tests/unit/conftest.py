import sys
import time
from pathlib import Path

import pytest

from molt_tui import spawn
from molt_tui.services import launch

SUPERVISE = """
import sys
from engine.supervisor import Supervisor
from engine.wire import RunDir
sys.exit(Supervisor(RunDir(sys.argv[1]), [sys.executable, sys.argv[2]]).execute())
"""
RECIPE = """
[recipe]
title = "Sums"
[actor]
model_name_or_path = "tiny:qwen3"
[data]
prompt_dataset = ["prompts.jsonl"]
[algo.advantage]
is_correction_level = "token"
[train]
agent_path = "sums.py"
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    """A recipe that validates, in a folder of its own."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "sums.py").write_text("class AgentRunner: pass\n")
    (folder / "prompts.jsonl").write_text("{}\n")
    (folder / "sums.toml").write_text(RECIPE)
    return folder / "sums.toml"


@pytest.fixture
def fake_engine(monkeypatch):
    """Launches start the real supervisor with fake_engine.py; whatever is left at the end is killed."""
    started = []
    real_start = spawn.start_supervisor

    def start(python: str, run: Path):
        process = real_start(python, run)
        started.append(process)
        return process

    script = str(Path(__file__).with_name("fake_engine.py"))
    monkeypatch.setattr(spawn, "supervisor_command", lambda python, run: [python, "-c", SUPERVISE, str(run), script])
    monkeypatch.setattr(spawn, "start_supervisor", start)
    monkeypatch.setattr(launch, "engine_python", lambda: sys.executable)
    yield started
    for process in started:
        process.kill()  # its engine holds a lifeline and ends with it
        process.wait()


def until(condition, seconds: float = 20.0):
    """Wait for a condition and return its value; fails the test when it does not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
    return value
