import sqlite3

import pytest

from molt_tui.errors import StoreError
from molt_tui.store.database import SCHEMA_VERSION, connect, open_store
from molt_tui.store.home import Home
from tests.store_content import in_two_processes


def test_new_database_is_private_and_versioned(home):
    with open_store(home) as store:
        assert store.rows("PRAGMA user_version")[0][0] == SCHEMA_VERSION
        names = {r[0] for r in store.rows("SELECT name FROM sqlite_master")}
    assert {"runs", "metric_rows", "metrics", "metric_curve", "latest_metric", "run_summary", "rollout_rows_fts"} <= names
    assert home.database.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("mode", "synchronous"), [("wal", 1), ("delete", 2)])
def test_journal_follows_the_file_system(home, monkeypatch, mode, synchronous):
    monkeypatch.setattr("molt_tui.store.database.journal_mode", lambda _path: mode)
    with open_store(home) as store:
        assert store.rows("PRAGMA journal_mode")[0][0] == mode
        assert store.rows("PRAGMA synchronous")[0][0] == synchronous
        assert store.rows("PRAGMA cache_size")[0][0] == -2048, "KiB, for each thread"


def test_newer_schema_is_refused(home):
    open_store(home).close()
    connection = sqlite3.connect(home.database)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreError, match="newer molt-tui"):
        open_store(home)


def test_damaged_database_says_rebuild(home):
    home.database.write_bytes(b"not a database" * 500)
    with pytest.raises(StoreError, match="db rebuild"):
        open_store(home)


def test_locked_database_is_one_line(home, monkeypatch):
    open_store(home).close()
    blocker = sqlite3.connect(home.database, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("molt_tui.store.database.BUSY_SECONDS", 0.01)
    with open_store(home) as store, pytest.raises(StoreError, match="another molt-tui"), store.write():
        pass
    blocker.close()


def test_read_only_connection_cannot_write(home):
    open_store(home).close()
    connection = connect(home.database, read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM runs")
    connection.close()


def _open(home: Home, barrier) -> None:
    barrier.wait()
    open_store(home).close()


def test_two_processes_create_it_at_once(home):
    assert in_two_processes(_open, home) == [0, 0]
