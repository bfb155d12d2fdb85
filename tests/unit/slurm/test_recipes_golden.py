"""Dry runs of every Slurm recipe against golden files: settings, batch script, memory table.

MOLT_UPDATE_GOLDEN=1 rewrites them; look at the difference.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.flags import changed_fields
from engine.recipes import load
from molt_tui.services.slurm import memory_table
from molt_tui.slurm import render as rendering

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


@pytest.mark.parametrize("name", RECIPES)
def test_dry_run(name, monkeypatch, tmp_path):
    text, script = dry_run(name, monkeypatch)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MOLT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", RECIPES)
def test_every_slurm_recipe_fits_by_estimate(name):
    _, config, problems = load(name, [])
    assert config is not None and not problems
    table = memory_table(config)
    assert table is not None and table.found is not None and table.found.fits and not table.flags


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_are_clean():
    scripts = [ROOT / "slurm" / "batch.sh", *sorted((ROOT / "tests" / "slurm").glob("*.sh"))]
    checked = subprocess.run(["shellcheck", *map(str, scripts)], text=True, capture_output=True)
    assert checked.returncode == 0, checked.stdout
