"""Run directories that somebody damaged: nothing there may hold up or end a reader, or fill its memory."""

import gzip
import json
import os

import pytest

from engine import wire
from engine.wire import Cursor, EventReader, RunDir
from molt_tui.errors import StoreError
from molt_tui.services.health import HealthReader
from molt_tui.services.runs import get_run, list_runs
from molt_tui.store import notes as notes_module
from molt_tui.store import rollouts as rollouts_module
from molt_tui.store.ingest import ingest
from molt_tui.store.rebuild import _alone, rebuild
from molt_tui.store.rollouts import read_rollouts
from tests.make_golden import RUN_ID

FILES = ("meta.json", "status.json", "notes.jsonl", "run.toml", "attempts/1/events/000000.jsonl", "attempts/1/exit.json",
         "rollouts/1-1.jsonl.gz")  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.timeout(20)
def test_a_file_that_is_none_is_as_good_as_missing(store, golden, name, kind):
    path = golden / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    report = ingest(store)
    if name == "meta.json":
        assert "cannot be read" in report.problems[0]
    else:
        assert not report.problems
        HealthReader().config(get_run(store, RUN_ID))


@pytest.mark.parametrize("name", ["²", "٣x", "-1", "9" * 200, ".claim"])
def test_strange_names_among_attempts_are_no_attempts(store, golden, name):
    (golden / "attempts" / name).mkdir()
    assert all(n < 1 << 31 or len(str(n)) == 200 for n in RunDir(golden).attempt_numbers())
    assert not ingest(store).problems


def test_a_link_to_itself_hides_no_other_run(home, store, golden):
    (home.runs_root / "loop").symlink_to("loop")
    ingest(store)
    assert [run.id for run in list_runs(store)] == [RUN_ID]


def test_a_line_without_end_is_passed_once_and_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "LINE_BYTES", 4096)
    good = json.dumps({"kind": "phase", "seq": 1}).encode() + b"\n"
    (tmp_path / "000000.jsonl").write_bytes(good + b"x" * 50_000 + b"\n" + good)
    reader = EventReader(tmp_path, Cursor())
    assert [len(batch) for batch in reader.batches(1024) if batch] == [1, 1]
    assert reader.cursor.offset == 2 * len(good) + 50_001


def test_a_rollout_file_that_unpacks_to_one_endless_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts_module, "LINE_BYTES", 1 << 20)
    path = tmp_path / "1-1.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"a": 1}\n' + b"0" * (8 << 20) + b'\n{"b": 1}\n')
    assert list(read_rollouts(path)) == [{"a": 1}]


def test_notes_without_an_end_are_read_once(store, golden, monkeypatch):
    monkeypatch.setattr(notes_module, "LINE_BYTES", 1000)
    before = (golden / "notes.jsonl").stat().st_size if (golden / "notes.jsonl").exists() else 0
    with (golden / "notes.jsonl").open("ab") as file:
        file.write(b"y" * 5500)
    ingest(store)
    cursor = store.rows("SELECT offset FROM cursors WHERE stream = 'notes'")[0]["offset"]
    assert before + 5000 <= cursor <= before + 5500


def test_a_record_larger_than_any_is_not_read(store, golden):
    with (golden / "status.json").open("wb") as file:
        file.truncate(1 << 34)
    assert not ingest(store).problems


def test_a_configuration_nested_without_end_is_unreadable(store, golden):
    ingest(store)
    (golden / "run.toml").write_text("a = " + "[" * 100_000)
    assert HealthReader().config(get_run(store, RUN_ID)) == {}


def test_one_rebuild_at_a_time(home, golden):
    with _alone(home), pytest.raises(StoreError, match="being rebuilt by another"):
        rebuild(home)
    assert rebuild(home).runs == 1
