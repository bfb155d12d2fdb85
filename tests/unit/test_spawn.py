"""Programs that are asked for something: slow, talkative, or gone wild."""

import time
from pathlib import Path

import pytest

from molt_tui import spawn
from molt_tui.slurm.commands import Slurm
from tests.unit.conftest import until


def script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_both_outputs_and_the_code(tmp_path):
    done = spawn.run_program([script(tmp_path, "p", "echo out; printf 'e\\377' >&2; exit 3")], timeout=20)
    assert (done.code, done.stdout, done.stderr) == (3, "out\n", "e\ufffd")


def test_what_a_slow_program_started_ends_with_it(tmp_path):
    program = script(tmp_path, "slow", f"echo partial; sleep 600 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    done = spawn.run_program([program], timeout=1.0)
    assert done.code is None and done.stdout == "partial\n" and "timed out after 1 s" in done.stderr
    assert time.monotonic() - began < 15
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX")


def test_a_program_that_closes_its_outputs_and_stays_is_ended(tmp_path):
    assert spawn.run_program([script(tmp_path, "mute", "exec >&- 2>&-; sleep 600")], timeout=0.5).code is None


@pytest.mark.timeout(60)
def test_a_flood_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(spawn, "OUTPUT_BYTES", 1 << 20)
    done = spawn.run_program([script(tmp_path, "flood", "exec yes")], timeout=50)
    assert done.code is None and "printed more than 1 MiB" in done.stderr and len(done.stdout) < 2 << 20


@pytest.mark.parametrize("answer", ["", ";", " ; ", "\\n\\n", "²", "12;cluster"])
def test_any_answer_of_sbatch_is_an_answer(tmp_path, monkeypatch, answer):
    script(tmp_path, "sbatch", f"printf '{answer}'")
    script(tmp_path, "sinfo", f"printf '{answer}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Slurm().submit(tmp_path / "x.sh").job_id == ("12" if answer.startswith("12") else None)
    Slurm().version()
