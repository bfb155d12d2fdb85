"""What disks, other processes and people do to molt.db: one clear line, and nothing that is in a run directory is lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from sqlite_utils import Database

from molt_tui.cli import main
from molt_tui.errors import StoreError
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from molt_tui.store.rebuild import rebuild
from molt_tui.store.schema import migrations
from molt_tui.tui.store_source import StoreSource
from tests.make_golden import RUN_ID
from tests.store_content import content, in_two_processes


def copies(home, golden, count):
    for index in range(count):
        copy = shutil.copytree(golden, home.runs_root / f"copy-{index}")
        meta = copy / "meta.json"
        meta.write_text(meta.read_text().replace(RUN_ID, copy.name))


def test_the_app_goes_on_after_the_file_is_deleted_or_rebuilt_under_it(home, golden):
    source = StoreSource(home)
    source.ingest()
    before = source.runs()
    home.database.unlink()
    source.ingest()
    assert [run.id for run in source.runs()] == [run.id for run in before] == [RUN_ID]
    assert home.database.exists()
    rebuild(home)
    copies(home, golden, 1)
    source.ingest()
    with open_store(home) as other:  # what the app wrote is in the new file, not in the one that is gone
        assert len(other.rows("SELECT 1 FROM runs")) == 2


def test_pages_overwritten_in_the_middle(home, golden, monkeypatch, capsys):
    monkeypatch.setenv("MOLT_TUI_HOME", str(home.path))
    monkeypatch.setenv("MOLT_TUI_RUNS", str(home.runs_root))
    with open_store(home) as store:
        ingest(store)
        before = content(store)
        store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    size = home.database.stat().st_size
    with open(home.database, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    assert main(["runs"]) == 1
    error = capsys.readouterr().err
    assert "molt-tui db rebuild" in error
    assert error.count("\n") == 1
    assert main(["db", "rebuild"]) == 0
    with open_store(home) as store:
        assert content(store) == before


STEPS = [migration.name for migration in migrations.pending(Database(sqlite3.connect(":memory:")))]


@pytest.mark.parametrize("missing", STEPS[1:])
def test_an_older_schema_is_brought_up_when_opened(home, golden, missing):
    with open_store(home) as store:
        ingest(store)
        newest = content(store)
    home.database.unlink()
    connection = sqlite3.connect(home.database, isolation_level=None)
    migrations.apply(Database(connection), stop_before=missing)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with open_store(home) as store:
        ingest(store)
        assert content(store) == newest


def test_a_full_disk_is_one_line_and_heals(home, golden):
    copies(home, golden, 30)
    with open_store(home) as store:
        pages = store.rows("PRAGMA page_count")[0][0]
        store.rows(f"PRAGMA max_page_count = {pages + 8}")
        report = None
        with pytest.raises(StoreError, match="free some space"):
            report = ingest(store)
        assert report is None
        store.rows("PRAGMA max_page_count = 1073741823")
        ingest(store)
        healed = content(store)
    rebuild(home)
    with open_store(home) as store:
        assert content(store) == healed


def _ingest(home, barrier):
    with open_store(home) as store:
        barrier.wait()
        for _ in range(3):
            ingest(store)


def test_two_processes_ingest_the_same_runs(home, golden):
    copies(home, golden, 20)
    assert in_two_processes(_ingest, home) == [0, 0]
    with open_store(home) as store:
        together = content(store)
    rebuild(home)
    with open_store(home) as store:
        assert content(store) == together
        assert len(together["run_summary"]) == 21


@pytest.fixture
def disk(tmp_path):
    """A real small disk; tests are skipped where nobody may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "molt-test", place], capture_output=True).returncode:
        pytest.skip("no right to mount a file system here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def answers(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MOLT_TUI_HOME": str(home.path), "MOLT_TUI_RUNS": str(home.runs_root)}
    return subprocess.run(
        [sys.executable, "-m", "molt_tui", *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


def test_a_read_only_disk_is_one_line_and_nothing_is_lost(home, golden, disk):
    there = replace(home, path=disk / "home")
    assert answers(there, "runs").returncode == 0
    copies(home, golden, 1)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    refused = answers(there, "runs")
    assert refused.returncode == 1 and refused.stdout == ""
    assert "make the folder writable or set MOLT_TUI_HOME" in refused.stderr and refused.stderr.count("\n") == 1
    rebuilt = answers(there, "db", "rebuild")
    assert (rebuilt.returncode, rebuilt.stderr) == (1, f"molt-tui: cannot rebuild {there.database}: Read-only file system\n")
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    assert answers(there, "runs").stdout.count("copy-0") == 1


def test_a_rebuild_that_fails_leaves_no_half_made_file(home, golden, monkeypatch):
    def full(*_):
        raise StoreError("database or disk is full")

    monkeypatch.setattr("molt_tui.store.rebuild.ingest", full)
    with pytest.raises(StoreError, match="full"):
        rebuild(home)
    assert [path.name for path in (home.path / "rebuild").rglob("*") if path.is_file()] == []


def test_a_disk_that_is_really_full_is_one_line_and_heals(home, golden, disk):
    there = replace(home, path=disk / "home")
    assert answers(there, "runs").returncode == 0
    copies(home, golden, 40)
    (disk / "ballast").write_bytes(bytes(900_000 - sum(p.stat().st_size for p in there.path.rglob("*") if p.is_file())))
    refused = answers(there, "runs")
    assert refused.returncode == 1
    assert "free some space" in refused.stderr and refused.stderr.count("\n") == 1
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    assert answers(there, "runs").stdout.count("copy-") == 40
