import sqlite3
import time

import pytest

from molt_tui.errors import NotFound, Refused
from molt_tui.store.ingest import ingest
from molt_tui.store.query import Limits, run_query


@pytest.fixture
def filled(store, golden):
    ingest(store)
    return store.home


def test_select(filled):
    result = run_query(filled, "SELECT step, value FROM metric_curve WHERE key = 'reward/mean' ORDER BY step LIMIT 2")
    assert (result.columns, result.rows, result.truncated) == (["step", "value"], [(1, 0.11), (2, 0.21)], False)
    assert run_query(filled, "PRAGMA table_info(metrics)").rows[0][1] == "run"
    assert run_query(filled, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3) SELECT i FROM n").rows
    match = "SELECT count(*) FROM rollout_rows_fts WHERE rollout_rows_fts MATCH '3'"
    assert run_query(filled, match).rows == [(4,)]


def test_json_objects(filled):
    result = run_query(filled, "SELECT 1 AS a, 2 AS a, x'00ff' AS b, 9e999 AS c, -9e999 AS d, NULL AS e")
    assert result.objects() == [{"a": 1, "a_2": 2, "b": "00ff", "c": "inf", "d": "-inf", "e": None}]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM runs", "only reading"), ("DROP VIEW metrics", "only reading"), ("CREATE TABLE x (y)", "only reading"),
        ("ATTACH '/tmp/x.db' AS x", "only reading"), ("PRAGMA journal_mode = delete", "only reading"),
        ("PRAGMA writable_schema = on", "only reading"), ("SELECT load_extension('x')", "only reading"),
        ("VACUUM INTO '/tmp/x.db'", "only reading"), ("SELECT 1; SELECT 2", "one statement"), ("", "returns nothing"),
        ("SELECT nope FROM runs", "the views are"), ("SELECT * FROM nope", "the views are"), ("SELEC", "syntax error"),
        ("SELECT '\x00'", "SQL error"), ("SELECT '\ud800'", "SQL error"), ("SELECT ?", "SQL error"),
        ("SELECT length(zeroblob(1000000000))", "larger than 8 MiB"),
        (f"SELECT 'a' LIKE '{'%a' * 200}'", "may have 200 characters"),
        (f"SELECT zeroblob(8000000){', zeroblob(8000000)' * 300}", "more than 512 MiB"),
        (f"SELECT max({', '.join(['hex(zeroblob(4000000))'] * 100)})", "more than 512 MiB"),
    ],
)  # fmt: skip
def test_refused_in_one_line(filled, sql, message):
    before = filled.database.read_bytes()
    with pytest.raises(Refused, match=message) as caught:
        run_query(filled, sql)
    assert "\n" not in str(caught.value)
    assert filled.database.read_bytes() == before


def test_limits(filled):
    result = run_query(filled, "SELECT * FROM metrics", Limits(rows=3))
    assert len(result.rows) == 3 and result.truncated
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(Refused, match="longer than"):
        run_query(filled, endless, Limits(seconds=0.05))


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def test_large_values_are_cut_by_bytes(filled):
    result = run_query(filled, f"{NUMBERS} SELECT zeroblob(1000000) FROM n LIMIT 300", Limits(bytes=5_000_000))
    assert (len(result.rows), result.cut) == (5, "bytes")
    assert len(run_query(filled, "SELECT zeroblob(1000)", Limits(bytes=10)).rows) == 1


def test_few_large_steps_keep_the_time_limit(filled):
    """Each row takes milliseconds inside one step of SQLite, so that a rare look at the clock would come too late."""
    started = time.monotonic()
    with pytest.raises(Refused, match="longer than"):
        run_query(filled, f"{NUMBERS} SELECT max(length(hex(zeroblob(4000000 + i % 2)))) FROM n", Limits(seconds=0.3))
    assert time.monotonic() - started < 5


def test_a_query_can_be_cancelled(filled):
    asked = []
    with pytest.raises(Refused, match="cancelled"):
        run_query(filled, f"{NUMBERS} SELECT max(i) FROM n", cancelled=lambda: len(asked) > 3 or bool(asked.append(1)))


def test_without_a_database(home):
    with pytest.raises(NotFound, match="db ingest"):
        run_query(home, "SELECT 1")
    assert not home.database.exists()


def test_a_curve_reads_one_range(filled):
    """The newest points of one metric must not cost a scan or a sort: both would be slow at 20 million rows."""
    connection = sqlite3.connect(filled.database)
    sql = "SELECT step, value FROM metric_curve WHERE run = 'r' AND key = 'k' ORDER BY step DESC LIMIT 500"
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
    connection.close()
    assert "SCAN" not in plan and "TEMP B-TREE" not in plan
    assert "SEARCH m USING PRIMARY KEY (run_num=? AND key_num=?)" in plan
