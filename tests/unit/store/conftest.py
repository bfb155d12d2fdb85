import shutil
from pathlib import Path

import pytest

from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from tests.make_golden import GOLDEN, RUN_ID


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", tmp_path / "runs").create()


@pytest.fixture
def store(home: Home):
    with open_store(home) as opened:
        yield opened


@pytest.fixture
def golden(home: Home) -> Path:
    return shutil.copytree(GOLDEN, home.runs_root / RUN_ID)
