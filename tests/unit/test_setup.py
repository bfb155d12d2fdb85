"""The set-up script against a pip that only notes what it is asked to install."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTING_PYTHON = """#!/bin/sh
case "$*" in *" install "*) echo "$*" >> "$NOTES" ;; esac
"""


def asked_of_pip(tmp_path, *words):
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(NOTING_PYTHON)
    python.chmod(0o755)
    notes = tmp_path / "notes"
    environment = {**os.environ, "VENV": str(tmp_path / "venv"), "PYTHON": "python3", "NOTES": str(notes)}
    subprocess.run(["bash", ROOT / "requirements/setup.sh", *words], env=environment, check=True)
    return notes.read_text().splitlines()


@pytest.mark.parametrize("words", [(), ("light",)])
def test_what_builds_the_package_is_there_before_it_is_built(tmp_path, words):
    asked = asked_of_pip(tmp_path, *words)
    assert "setuptools>=77" in asked[-2] and "--no-build-isolation" in asked[-1]


def test_the_login_node_gets_no_engine_and_no_test_tools(tmp_path):
    asked = "\n".join(asked_of_pip(tmp_path, "light"))
    assert "base.lock" in asked and not any(word in asked for word in ("torch", "engine", "dev.lock", "/dev/fd"))
