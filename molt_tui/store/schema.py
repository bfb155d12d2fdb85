"""Tables, search and views of the database. Imported only when a database is new or older than this program.

Numbers stand for run ids and metric keys in the large tables; the views without `_rows` show text and are meant for people.
"""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from molt_tui.store.database import transaction

migrations = Migrations("molt_tui")


@migrations()
def m001_runs(db: Database) -> None:
    """Runs, their attempts, notes, and where ingest stands."""
    db["runs"].create(
        {
            "num": int, "id": str, "path": str, "name": str, "group": str, "parent": str, "recipe": str, "user": str,
            "host": str, "commit": str, "command": str, "cluster": str, "created": float, "updated": float, "state": str,
            "phase": str, "detail": str, "step": int, "version": int, "attempt": int, "attempts": int, "max_steps": int,
            "last_checkpoint": int, "job_id": str, "supervisor_host": str, "supervisor_pid": int, "beat": int,
            "last_error": str, "own_tags": str, "tags": str,
        },
        pk="num", not_null={"id", "path", "name"},
    )  # fmt: skip
    db["runs"].create_index(["id"], unique=True)
    db["runs"].create_index(["name"])
    db["runs"].create_index(["created", "id"])
    db["attempts"].create(
        {"run_num": int, "attempt": int, "reason": str, "detail": str, "code": int, "signal": int, "step": int,
         "resumable": int, "t": float},
        pk=("run_num", "attempt"),
    )  # fmt: skip
    db["notes"].create(
        {"run_num": int, "position": int, "t": float, "who": str, "action": str, "text": str}, pk=("run_num", "position")
    )
    db["cursors"].create(
        {"run_num": int, "attempt": int, "stream": str, "file": int, "offset": int, "bad_lines": int},
        pk=("run_num", "attempt", "stream"),
    )
    db["observations"].create({"run_num": int, "beat": int, "seen": float, "changed": float, "signature": str}, pk="run_num")


@migrations()
def m002_metrics(db: Database) -> None:
    """20 million rows: clustered by (run, key, step, attempt), so that a curve is one range; newest values apart."""
    db["keys"].create({"num": int, "name": str}, pk="num")
    db["keys"].create_index(["name"], unique=True)
    value = "t REAL, value REAL, special TEXT, json TEXT"
    db.execute(
        "CREATE TABLE metric_rows (run_num INTEGER NOT NULL, key_num INTEGER NOT NULL, step INTEGER NOT NULL,"
        f" attempt INTEGER NOT NULL, {value}, PRIMARY KEY (run_num, key_num, step, attempt)) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE latest_rows (run_num INTEGER NOT NULL, key_num INTEGER NOT NULL, step INTEGER NOT NULL,"
        f" attempt INTEGER NOT NULL, {value}, PRIMARY KEY (run_num, key_num)) WITHOUT ROWID"
    )


@migrations()
def m003_events(db: Database) -> None:
    db.execute(
        "CREATE TABLE event_rows (run_num INTEGER NOT NULL, attempt INTEGER NOT NULL, stream TEXT NOT NULL,"
        " seq INTEGER NOT NULL, t REAL, kind TEXT NOT NULL, step INTEGER, version INTEGER, data TEXT NOT NULL,"
        " PRIMARY KEY (run_num, attempt, stream, seq)) WITHOUT ROWID"
    )
    db["event_rows"].create_index(["run_num", "kind", "t"])


@migrations()
def m004_rollouts(db: Database) -> None:
    """One row per recorded rollout; its text is searchable through rollout_rows_fts."""
    db["rollout_rows"].create(
        {
            "id": int, "run_num": int, "attempt": int, "step": int, "rollout_id": str, "prompt_id": str, "group_id": str,
            "reward": float, "score": float, "advantage": float, "turns": int, "truncated": int, "segments": int,
            "sampled": int, "masked": int, "mismatched": int, "min_version": int, "max_version": int, "text": str,
        },
        pk="id",
    )  # fmt: skip
    db["rollout_rows"].create_index(["run_num", "attempt", "step", "rollout_id"], unique=True)
    db["rollout_rows"].enable_fts(["text"], create_triggers=True)


@migrations()
def m005_views(db: Database) -> None:
    values = "m.t, m.value, m.special, m.json"
    joins = "JOIN runs r ON r.num = m.run_num JOIN keys k ON k.num = m.key_num"
    named = f"r.id AS run, m.attempt, m.step, k.name AS key, {values}"
    db.create_view("metrics", f"SELECT {named} FROM metric_rows m {joins}")
    db.create_view(
        "metric_curve",
        f"SELECT {named} FROM metric_rows m {joins} WHERE NOT EXISTS (SELECT 1 FROM metric_rows n WHERE"
        " n.run_num = m.run_num AND n.key_num = m.key_num AND n.step = m.step AND n.attempt > m.attempt)",
    )
    db.create_view("latest_metric", f"SELECT {named} FROM latest_rows m {joins}")
    db.create_view(
        "events",
        "SELECT r.id AS run, e.attempt, e.stream, e.seq, e.t, e.kind, e.step, e.version, e.data"
        " FROM event_rows e JOIN runs r ON r.num = e.run_num",
    )
    db.create_view(
        "rollouts",
        "SELECT o.id, r.id AS run, o.attempt, o.step, o.rollout_id, o.prompt_id, o.group_id, o.reward, o.score, o.advantage,"
        " o.turns, o.truncated, o.segments, o.sampled, o.masked, o.mismatched, o.min_version, o.max_version, o.text"
        " FROM rollout_rows o JOIN runs r ON r.num = o.run_num",
    )
    reward = (
        "(SELECT m.value FROM latest_rows m JOIN keys k ON k.num = m.key_num WHERE m.run_num = r.num AND k.name = 'reward/mean')"
    )
    db.create_view(
        "run_summary",
        'SELECT r.id, r.name, r."group", r.recipe, r.state, r.step, r.max_steps, r.version, r.attempts, r.created, r.updated,'
        f" {reward} AS reward, r.job_id, r.cluster, r.tags, r.detail, r.last_checkpoint, r.last_error, r.path FROM runs r",
    )


@migrations()
def m006_slurm(db: Database) -> None:
    """What Slurm last said about each run's job, and when it was asked; shared by every molt-tui of this user."""
    db["slurm_jobs"].create(
        {"run_num": int, "cluster": str, "job_id": str, "slurm_state": str, "reason": str, "state": str, "words": str,
         "hopeless": int, "nodes": int, "node_list": str, "start": float, "end": float, "answered": float, "ended": int},
        pk="run_num",
    )  # fmt: skip
    db["slurm_calls"].create(
        {"cluster": str, "kind": str, "asked": float, "answered": float, "failures": int, "error": str, "text": str},
        pk=("cluster", "kind"),
    )


@migrations()
def m007_rollout_figures(db: Database) -> None:
    """What the Traces screen sorts by; recorded rollouts are read once more to fill it in."""
    for name, kind in (("trained_version", int), ("staleness_max", int), ("ratio_mean", float), ("ratio_extreme", float),
                       ("prompt_chars", int), ("label", str), ("info", str)):  # fmt: skip
        db["rollout_rows"].add_column(name, kind)
    db["rollout_rows"].create_index(["run_num", "step"])
    named = ("attempt", "step", "rollout_id", "prompt_id", "group_id", "reward", "score", "advantage", "turns", "truncated",
             "segments", "sampled", "masked", "mismatched", "ratio_mean", "ratio_extreme", "min_version", "max_version",
             "trained_version", "staleness_max", "label", "info", "prompt_chars", "text")  # fmt: skip
    columns = ", ".join(f"o.{name}" for name in named)
    sql = f"SELECT o.id, r.id AS run, {columns} FROM rollout_rows o JOIN runs r ON r.num = o.run_num"
    db.create_view("rollouts", sql, replace=True)
    db.execute("DELETE FROM cursors WHERE stream LIKE 'rollouts/%'")
    db.execute("UPDATE observations SET signature = NULL")


@migrations()
def m008_changes(db: Database) -> None:
    """The number of each run's last change, kept by triggers whoever writes, so that a reader asks only for what is new.
    A run that was deleted leaves its number behind. The stamp tells this database from one that takes its place."""
    db.execute("CREATE TABLE identity (stamp TEXT NOT NULL)")
    db.execute("INSERT INTO identity SELECT hex(randomblob(8))")
    db.execute("CREATE TABLE changes (run_num INTEGER PRIMARY KEY, revision INTEGER NOT NULL)")
    db.execute("CREATE INDEX changes_revision ON changes (revision)")
    db.execute("INSERT INTO changes SELECT num, 1 FROM runs")
    mark = (
        "INSERT INTO changes SELECT {num}, coalesce(max(revision), 0) + 1 FROM changes WHERE true"
        " ON CONFLICT (run_num) DO UPDATE SET revision = excluded.revision"
    )
    for table, event, num in (("runs", "INSERT", "new.num"), ("runs", "UPDATE", "new.num"), ("runs", "DELETE", "old.num"),
                              ("cursors", "INSERT", "new.run_num")):  # fmt: skip
        db.execute(f"CREATE TRIGGER changes_{table}_{event.lower()} AFTER {event} ON {table} BEGIN {mark.format(num=num)}; END")


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the database to the newest schema in one transaction and stamp it with `version`, which open_store compares."""
    db = Database(connection)
    with transaction(connection):
        migrations.apply(db)
        connection.execute(f"PRAGMA user_version = {version}")
