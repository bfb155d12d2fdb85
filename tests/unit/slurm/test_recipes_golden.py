"""Dry runs of every Slurm recipe, and of each kind of container, against golden files.

MOLT_UPDATE_GOLDEN=1 rewrites them; look at the difference.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from engine.flags import changed_fields
from engine.recipes import load
from engine.wire import RunDir
from molt_tui.services.slurm import memory_table
from molt_tui.slurm import render as rendering
from slurm.allocation import Job, Settings
from slurm.attempt import controller_command, nodes_command

RECIPES = ("qwen3-4b-math", "qwen3-4b-math-2x8", "qwen3-30b-a3b-math-r3", "deepseek-v3-math-ep256")
GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[3]


def dry_run(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """(everything a dry run shows, the batch script alone), free of this machine's paths."""
    _, config, problems = load(name, ["--slurm.python", "/opt/molt/bin/python", "--slurm.partition", "gpu"])
    assert config is not None and not problems
    monkeypatch.setattr(rendering, "library_root", lambda: ROOT)
    script = rendering.render(config, Path("/scratch/me/runs/RUN"), "RUN", 1).replace(str(ROOT), "/opt/molt/lib")
    settings = [f"{key} = {value}".replace(str(ROOT), "/opt/molt/lib") for key, value in changed_fields(config).items()]
    table = memory_table(config)
    assert table is not None and table.found is not None
    found = table.found
    rows = [f"{p.where:<8} {p.part:<24} {p.gib:8.1f}  {p.note}".rstrip() for p in found.parts]
    sums = [f"trainer {found.trainer_gib:.1f} of {found.gpu_gib:.0f} GiB fits={found.trainer_fits}",
            f"sampler {found.sampler_gib:.1f} of {found.gpu_gib:.0f} GiB fits={found.sampler_fits}",
            f"host {found.host_gib:.1f} GiB a rank", *(f"would fit with {flag}" for flag in table.flags)]  # fmt: skip
    return "\n".join([*settings, "", script, *rows, *sums]) + "\n", script


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MOLT_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def shellcheck(*files: str, script: str = "") -> None:
    program = Path(sys.executable).parent / "shellcheck"
    checked = subprocess.run([program, *files], input=script, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(("kind", "image"), [("pyxis", "/images/molt-tui.sqsh"), ("apptainer", "/images/molt-tui.sif")])
def test_containers(kind, image, monkeypatch):
    """The batch script, which runs outside, and the two commands that it ends in, which run inside the container."""
    flags = ["--slurm.container", image, "--slurm.container_kind", kind, "--slurm.nodes", "2", "--slurm.partition", "gpu",
             "--slurm.container_mounts", "/data:/data", "/cache:/cache:ro", "--slurm.python", "/opt/molt/bin/python"]  # fmt: skip
    _, config, problems = load("qwen3-4b-math-2x8", flags)
    assert config is not None and not problems
    monkeypatch.setattr(rendering, "library_root", lambda: ROOT)
    monkeypatch.setattr(sys, "executable", "/home/me/molt/bin/python")
    run = RunDir(Path("/scratch/me/runs/RUN"))
    script = rendering.render(config, run.path, "RUN", 1).replace(str(ROOT), "/opt/molt/lib")
    known = {name: getattr(config.slurm, name) for name in Settings.__dataclass_fields__ if hasattr(config.slurm, name)}
    settings = Settings(**known | {"container_mounts": tuple(config.slurm.container_mounts)})
    environment = {"MOLT_LIBRARY": "/opt/molt/lib", "SLURMD_NODENAME": "gpu1", "SLURM_CPUS_PER_TASK": "96"}
    job = Job("7", 0, "gpu[1-2]", 2, environment)
    commands = [make(job, run, 1, settings, "/opt/molt/bin/python") for make in (nodes_command, controller_command)]
    compare(f"container-{kind}.txt", script + "\n" + "".join(f"{shlex.join(command)}\n" for command in commands))
    monkeypatch.undo()
    shellcheck("-", script=script)


@pytest.mark.parametrize("name", RECIPES)
def test_dry_run(name, monkeypatch, tmp_path):
    text, script = dry_run(name, monkeypatch)
    compare(f"{name}.txt", text)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    shellcheck("-", script=script)


@pytest.mark.parametrize("name", RECIPES)
def test_every_slurm_recipe_fits_by_estimate(name):
    _, config, problems = load(name, [])
    assert config is not None and not problems
    table = memory_table(config)
    assert table is not None and table.found is not None and table.found.fits and not table.flags


def test_scripts_are_clean():
    scripts = [ROOT / "slurm" / "batch.sh", ROOT / "requirements" / "setup.sh", *sorted((ROOT / "tests" / "slurm").glob("*.sh"))]
    shellcheck(*map(str, scripts))
