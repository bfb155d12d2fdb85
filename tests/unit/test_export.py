"""Export of what runs recorded, and the database as other programs see it."""

import csv
import errno
import io
import json
import math
import os
import shutil
import sqlite3
import sys

import pytest

from molt_tui.cli import main
from molt_tui.services.tables import new_text_file
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from tests.make_golden import GOLDEN, RUN_ID
from tests.traced_run import RUN_ID as TRACED
from tests.traced_run import write_run


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("MOLT_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MOLT_TUI_RUNS", raising=False)
    found = Home(tmp_path / "home", tmp_path / "home" / "runs").create()
    shutil.copytree(GOLDEN, found.runs_root / RUN_ID)
    write_run(found.runs_root)
    return found


@pytest.fixture
def export(capfdbinary):
    def call(*arguments: str) -> tuple[int, bytes, str]:
        code = main(["export", *arguments])
        captured = capfdbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return call


def test_metrics_as_csv_with_special_values(home, export):
    code, out, err = export(RUN_ID)
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    assert code == 0 and list(rows[0]) == ["run", "attempt", "step", "key", "t", "value", "text"]
    at_3 = {row["key"]: row for row in rows if row["step"] == "3"}
    assert (at_3["loss/policy"]["value"], at_3["optim/grad_norm"]["value"], at_3["reward/max"]["value"]) == ("nan", "inf", "-inf")
    assert at_3["staleness/hist"]["text"] == '[10,"nan",0]' and at_3["reward/mean"]["value"] == "0.31"
    assert f"{len(rows)} metrics rows of 1 run" in err


def test_events_as_json_lines_of_two_runs(home, export):
    code, out, _ = export(RUN_ID, TRACED, RUN_ID, "--events", "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and {row["run"] for row in rows} == {RUN_ID, TRACED}
    alert = next(row for row in rows if row["kind"] == "alert")
    assert alert["data"] == {"rule": "not_finite", "message": "loss/policy is NaN"}
    assert len({(r["run"], r["attempt"], r["stream"], r["seq"]) for r in rows}) == len(rows)


def test_rollouts_and_tokens_agree(home, export):
    rollouts = [json.loads(line) for line in export(TRACED, "--rollouts", "--format", "jsonl")[1].splitlines()]
    tokens = [json.loads(line) for line in export(TRACED, "--tokens", "--format", "jsonl")[1].splitlines()]
    assert len(rollouts) == 12 and rollouts[0]["label"] == "391"
    for row in rollouts:
        mine = [t for t in tokens if (t["step"], t["rollout_id"]) == (row["step"], row["rollout_id"])]
        assert sum(t["logprob"] is not None for t in mine) == row["sampled"]
        assert sum(t["state"] in ("over age", "ratio low", "ratio high") for t in mine) == row["masked"]
        assert max((t["staleness"] for t in mine if t["staleness"] is not None), default=None) == row["staleness_max"]


def test_parquet_holds_numbers_as_numbers(home, export, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "metrics.parquet"
    assert export(RUN_ID, "--format", "parquet", "-o", str(target))[:2] == (0, b"")
    table = parquet.read_table(target).to_pylist()
    assert str(parquet.read_schema(target).field("value").type) == "double"
    assert any(isinstance(row["value"], float) and math.isnan(row["value"]) for row in table)
    code, out, _ = export(TRACED, "--tokens", "--format", "parquet")
    assert code == 0 and out[:4] == b"PAR1" and parquet.read_table(io.BytesIO(out)).num_rows > 100


def test_parquet_without_pyarrow_is_refused_and_leaves_no_file(home, export, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = export(RUN_ID, "--format", "parquet", "-o", str(tmp_path / "x.parquet"))
    assert code == 2 and "pip install pyarrow" in err and err.count("\n") == 1
    assert not list(tmp_path.glob("x.parquet*"))


def test_a_file_is_for_its_owner_alone_and_its_place_is_said(home, export, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv.part").touch(0o666)
    before = os.umask(0)
    try:
        assert "metrics rows of 1 run in " + str(tmp_path / "old.csv") in export(RUN_ID, "-o", "old.csv")[2]
    finally:
        os.umask(before)
    assert (tmp_path / "old.csv").stat().st_mode & 0o777 == 0o600 and not list(tmp_path.glob("*.part"))


def test_a_device_stays_one_and_a_link_leads_on(home, export, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    code, _, err = export(RUN_ID, "-o", str(tmp_path / "pipe"))
    assert code == 2 and "pipe is not a file" in err and (tmp_path / "pipe").is_fifo()
    assert export(RUN_ID, "-o", str(tmp_path / "link.csv"))[0] == 0
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").read_bytes().startswith(b"run,")


def test_a_file_that_the_disk_has_no_room_for_is_not_left_in_part(tmp_path):
    with pytest.raises(OSError, match="No space"), new_text_file(tmp_path / "x.csv") as file:
        file.write("run,")
        raise OSError(errno.ENOSPC, "No space left on device")
    with new_text_file(tmp_path / "x.csv") as file:
        file.write("run")
    assert (tmp_path / "x.csv").read_text() == "run"
    with pytest.raises(FileExistsError), new_text_file(tmp_path / "x.csv"):
        pass
    assert (tmp_path / "x.csv").read_text() == "run"


def test_bad_usage(home, export, tmp_path):
    assert export(RUN_ID, "--format", "xml")[0] == 2 and export(RUN_ID, "--events", "--rollouts")[0] == 2
    assert export("nothing")[0] == 3
    code, _, err = export(RUN_ID, "-o", str(tmp_path / "no" / "such" / "folder.csv"))
    assert code == 1 and "cannot write" in err


def test_the_database_needs_nothing_of_this_program(home):
    """Another program opens it with a bare sqlite3: every view and the text search work, read-only."""
    with open_store(home) as store:
        ingest(store)
    connection = sqlite3.connect(f"{home.database.as_uri()}?mode=ro", uri=True)
    objects = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
    views = [name for name, kind in objects.items() if kind == "view"]
    assert {"runs", "run_summary", "metrics", "metric_curve", "latest_metric", "events", "rollouts"} <= objects.keys()
    for name in objects:
        connection.execute(f'SELECT * FROM "{name}" LIMIT 1').fetchall()
    for name in views:
        assert connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] > 0, name
    sql = " ".join(row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    assert "COLLATE" not in sql.upper()
    match = "SELECT count(*) FROM rollout_rows_fts WHERE rollout_rows_fts MATCH 'calculator'"
    assert connection.execute(match).fetchone()[0] == 12
    connection.close()
