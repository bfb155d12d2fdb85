"""Deleting runs: the directory and every row go, live runs are refused, and what stays is named."""

import json
import shutil

import pytest

from engine.processes import identity
from engine.wire import OWNER_FILE, encode_line, write_atomic
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.services import delete, notes, runs
from molt_tui.services.lines import RunLines
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.runs import RUN_TABLES
from tests.make_golden import GOLDEN, RUN_ID


@pytest.fixture
def store(tmp_path):
    home = Home(tmp_path / "home", tmp_path / "runs").create()
    for name in (RUN_ID, "other"):
        shutil.copytree(GOLDEN, home.runs_root / name)
    with open_store(home) as opened:
        runs.refresh(opened, rollouts=True)
        yield opened


def test_nothing_of_a_deleted_run_is_left(store):
    path = runs.get_run(store, RUN_ID).path
    assert delete.delete(store, RUN_ID) > 1000
    assert not path.exists() and [p.name for p in path.parent.iterdir()] == ["other"]
    for table in RUN_TABLES:
        left = {row["run_num"] for row in store.rows(f"SELECT DISTINCT run_num FROM {table}")}
        assert left <= {runs.get_run(store, "other").num}, table
    with pytest.raises(NotFound):
        runs.get_run(store, RUN_ID)
    runs.refresh(store)
    assert [run.id for run in runs.list_runs(store)] == ["other"]


def test_a_run_whose_supervisor_lives_is_refused(store):
    run = runs.get_run(store, RUN_ID)
    write_atomic(run.directory.attempt(2) / OWNER_FILE, encode_line(identity()))
    with pytest.raises(Refused, match="still at work; stop it first"):
        delete.delete(store, RUN_ID)
    assert run.path.exists()


def test_a_run_that_started_again_meanwhile_is_refused(store):
    run = runs.get_run(store, RUN_ID)
    run.directory.claim_attempt(identity())
    with pytest.raises(Refused, match="golden is starting: stop it first"):
        delete.delete(store, RUN_ID)


def test_a_job_that_is_not_over_is_refused(store):
    num = runs.get_run(store, RUN_ID).num
    with store.write() as connection:
        connection.execute("INSERT INTO slurm_jobs (run_num, job_id, state, ended) VALUES (?, '7', 'active', 0)", (num,))
    with pytest.raises(Refused, match="job"):
        delete.delete(store, RUN_ID)


def test_one_refusal_does_not_keep_the_others(store):
    run = runs.get_run(store, RUN_ID)
    run.directory.claim_attempt(identity())
    done, problems = delete.delete_all(store, [RUN_ID, "other", "nothing"])
    assert (
        [run.id for run in done] == ["other"]
        and len(problems) == 2
        and "stop it first" in problems[0]
        and "no run 'nothing'" in problems[1]
    )


def test_a_run_whose_directory_is_gone_is_forgotten(store):
    shutil.rmtree(runs.get_run(store, "other").path)
    assert delete.delete(store, "other") == 0
    assert [run.id for run in runs.list_runs(store)] == [RUN_ID]


def test_files_that_cannot_go_are_named(store, monkeypatch):
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, onerror: onerror(None, f"{path}/x", (OSError, OSError(13, "no permission")))
    )
    with pytest.raises(MoltError, match="is forgotten, but 1 of its files stay"):
        delete.delete(store, RUN_ID)


def test_a_link_is_left_alone(store, tmp_path):
    run = runs.get_run(store, RUN_ID)
    run.path.rename(tmp_path / "elsewhere")
    run.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="is a link"):
        delete.delete(store, RUN_ID)


def test_links_inside_a_run_are_removed_and_not_followed(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    run = runs.get_run(store, RUN_ID)
    (run.path / "checkpoints").mkdir(exist_ok=True)
    (run.path / "checkpoints" / "latest").symlink_to(outside)
    delete.delete(store, RUN_ID)
    assert (outside / "keep").read_text() == "x" and not run.path.exists()


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(store, monkeypatch):
    root = runs.get_run(store, RUN_ID).path.parent
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        delete.delete(store, RUN_ID)
    monkeypatch.undo()
    (left,) = root.glob(".deleted-*")
    left.rename(left.with_name(left.name.rpartition("-")[0] + "-999999999"))  # a process that is gone
    runs.refresh(store)
    delete.delete(store, RUN_ID)
    assert [p.name for p in root.iterdir()] == ["other"] and len(runs.list_runs(store)) == 1


def test_a_run_that_starts_while_it_is_deleted_stays(store, monkeypatch):
    run = runs.get_run(store, RUN_ID)
    before = delete.why_not

    def late(opened, found):
        answer = before(opened, found)
        found.directory.claim_attempt(identity())
        return answer

    monkeypatch.setattr(delete, "why_not", late)
    with pytest.raises(Refused, match="started just now"):
        delete.delete(store, RUN_ID)
    assert run.path.is_dir() and runs.get_run(store, RUN_ID).id == RUN_ID


def test_a_name_as_long_as_a_file_system_takes(store):
    long = runs.get_run(store, "other").path.with_name("n" * 255)
    shutil.copytree(GOLDEN, long)
    runs.refresh(store)
    delete.delete(store, long.name)
    assert not long.exists()


def test_tags_are_written_once_with_who_and_when(store):
    found = [runs.get_run(store, name) for name in (RUN_ID, "other")]
    assert found[0].tags == ("demo", "keep")
    assert notes.retag(store, found, ["keep", "moe"], ["demo", "absent"]) == 2
    lines = [json.loads(line) for line in found[0].directory.notes.read_text().splitlines()][4:]
    assert [(line["action"], line["text"]) for line in lines] == [("tag", "moe"), ("untag", "demo")]
    assert all("@" in line["who"] and line["t"] > 1e9 for line in lines)
    assert runs.get_run(store, "other").tags == ("keep", "moe")
    with pytest.raises(Refused, match="at most 4000"):
        notes.add(store, found[0], "note", "x" * 5000)


def test_lines_cost_what_changed(store):
    lines = RunLines()
    first = lines.refresh(store)
    assert {line.id: line.note for line in first}[RUN_ID] == "NaN at step 3, look at the batch"
    assert all(a is b for a, b in zip(lines.refresh(store), first))
    notes.add(store, runs.get_run(store, "other"), "note", "new\x1b[2J")
    second = {line.id: line for line in lines.refresh(store)}
    assert second[RUN_ID] in first and second["other"].note == "new\\e[2J"
    delete.delete(store, RUN_ID)
    assert [line.id for line in lines.refresh(store)] == ["other"]


def test_lines_notice_a_database_made_anew(store, tmp_path):
    lines = RunLines()
    lines.refresh(store)
    with open_store(Home(tmp_path / "new", tmp_path / "runs").create()) as fresh:
        shutil.rmtree(tmp_path / "runs" / RUN_ID)
        runs.refresh(fresh)
        for text in "abc":
            notes.add(fresh, runs.get_run(fresh, "other"), "note", text)
        assert [line.id for line in lines.refresh(fresh)] == ["other"]
