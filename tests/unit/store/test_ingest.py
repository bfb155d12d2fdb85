import gzip
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import protocol, wire
from molt_tui.services import metrics
from molt_tui.services.runs import as_json, list_runs
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from molt_tui.store.rebuild import rebuild
from tests.make_golden import RUN_ID
from tests.store_content import content


def curve(store, key):
    sql = "SELECT step, attempt, value, special FROM metric_curve WHERE run = ? AND key = ? ORDER BY step"
    return [tuple(r) for r in store.rows(sql, (RUN_ID, key))]


def test_golden_run(store, golden):
    report = ingest(store)
    assert (report.runs, report.problems) == (1, [])
    assert curve(store, "reward/mean") == [
        (1, 1, 0.11, None), (2, 1, 0.21, None), (3, 1, 0.31, None), (4, 1, 0.41, None),
        (5, 2, 0.52, None), (6, 2, 0.62, None), (7, 2, 0.72, None), (8, 2, 0.82, None), (9, 2, 0.92, None)]  # fmt: skip
    assert curve(store, "optim/grad_norm")[2] == (3, 1, None, "inf")
    assert curve(store, "loss/policy")[2] == (3, 1, None, "nan")
    assert len(store.rows("SELECT 1 FROM metrics WHERE key = 'reward/mean' AND step IN (5, 6)")) == 4
    summary = dict(store.rows("SELECT * FROM run_summary")[0])
    assert {k: summary[k] for k in ("id", "name", "group", "state", "step", "attempts", "reward", "tags")} == {
        "id": RUN_ID, "name": "golden", "group": "examples", "state": "completed", "step": 9, "attempts": 2,
        "reward": 0.92, "tags": '["demo","keep"]'}  # fmt: skip
    latest = store.rows("SELECT step, json FROM latest_metric WHERE key = 'staleness/hist'")
    assert [tuple(r) for r in latest] == [(9, "[19,6,1]")]
    attempts = [tuple(r) for r in store.rows("SELECT attempt, reason, signal FROM attempts ORDER BY attempt")]
    assert attempts == [(1, "crashed", 9), (2, "completed", None)]
    assert len(store.rows("SELECT 1 FROM rollout_rows_fts WHERE rollout_rows_fts MATCH '3'")) == 4


def test_second_ingest_reads_nothing_again(store, golden):
    ingest(store)
    before = content(store)
    report = ingest(store)
    assert (report.events, report.metrics, report.rollouts) == (0, 0, 0)
    assert content(store) == before


def test_a_run_that_ended_long_ago_is_skipped_until_it_changes(store, golden):
    late = golden.joinpath("status.json").stat().st_mtime + 1e5
    assert ingest(store, clock=lambda: late).runs == 1
    assert ingest(store, clock=lambda: late).runs == 0
    wire.append_line(golden / "notes.jsonl", {"t": 1.0, "who": "bob", "action": "tag", "text": "late"})
    assert ingest(store, clock=lambda: late).runs == 1
    assert store.rows("SELECT tags FROM run_summary")[0][0] == '["demo","keep","late"]'


def test_skipped_rollouts_come_later(store, golden):
    late = golden.joinpath("status.json").stat().st_mtime + 1e5
    assert ingest(store, rollouts=False, clock=lambda: late).rollouts == 0
    assert ingest(store, rollouts=False, clock=lambda: late).runs == 0
    assert ingest(store, clock=lambda: late).rollouts == 4


def test_rebuild_restores_row_for_row(store, home, golden):
    ingest(store)
    before = content(store)
    store.close()
    home.database.write_bytes(b"damaged")
    rebuild(home)
    with open_store(home) as again:
        assert content(again) == before


def test_torn_line_rotation_and_zombie_of_an_older_attempt(store, home):
    run = wire.RunDir(home.runs_root / "r1").create()
    protocol.write_record(run.meta, protocol.Meta(run="r1", name="r1", created=1.0, recipe="x"))
    first = protocol.EventWriter(run, "r1", run.claim_attempt(), rotate=400)
    for step in range(1, 7):
        first.emit(protocol.MetricsEvent, step=step, metrics={"reward/mean": float(step)})
    file = sorted((run.attempt(1) / "events").iterdir())[-1]
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    assert ingest(store).events == 5
    file.write_bytes(whole)
    assert ingest(store).events == 1
    second = protocol.EventWriter(run, "r1", run.claim_attempt())
    second.emit(protocol.MetricsEvent, step=6, metrics={"reward/mean": 60.0})
    ingest(store)
    first.emit(protocol.MetricsEvent, step=6, metrics={"reward/mean": -1.0})
    ingest(store)
    sql = "SELECT step, attempt, value FROM metric_curve WHERE step >= 5 ORDER BY step"
    assert [tuple(r) for r in store.rows(sql)] == [(5, 1, 5.0), (6, 2, 60.0)]
    assert store.rows("SELECT value FROM latest_metric")[0][0] == 60.0


def test_unreadable_records_are_counted_not_fatal(store, home):
    run = wire.RunDir(home.runs_root / "r1").create()
    run.meta.write_text('{"name": 5, "tags": "x", "created": "yesterday", "command": 3}')
    run.status.write_text('{"beat": "NaN", "step": 1e400, "phase": 7, "pid": -5}')
    run.notes.write_bytes(b'\xff\n{"action": "tag", "text": ["a"]}\n[]\n{"action":')
    folder = run.attempt(run.claim_attempt()) / "events"
    lines = [b"\xff\xfe", b"[" * 100_000, b'{"kind": "metrics"}', b'{"kind": 3, "seq": 0}', b"null", b"",
             b'{"kind":"metrics","seq":0,"step":1,"metrics":[]}', b'{"kind":"metrics","seq":1,"step":"x","metrics":{"a":1}}',
             b'{"kind":"metrics","seq":2,"step":2,"t":NaN,"metrics":{"\\ud800":1e999,"b":"\\u0000"}}']  # fmt: skip
    (folder / "000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (run.rollouts / "1-1.jsonl.gz").write_bytes(gzip.compress(b'{"step":1}\nnope\n')[:-6])
    report = ingest(store)
    assert report.bad_lines == 5 and report.problems == []
    assert [tuple(r) for r in store.rows("SELECT key, value, special, json FROM metrics ORDER BY key")] == [
        ("?", None, "inf", None), ("b", None, None, '"\\u0000"')]  # fmt: skip
    assert store.rows("SELECT tags FROM runs")[0][0] == '["[\\"a\\"]"]'
    (home.runs_root / "r2").mkdir()
    (home.runs_root / "r2" / "meta.json").write_text("torn")
    assert ingest(store).problems == ["r2: meta.json cannot be read"]


def test_a_run_whose_directory_is_gone_is_lost(store, home):
    run = wire.RunDir(home.runs_root / "r1").create()
    protocol.write_record(run.meta, protocol.Meta(run="r1", name="r1", created=1.0, recipe="x"))
    protocol.write_record(run.status, protocol.Status(run="r1", attempt=0, beat=0, phase="running", host="elsewhere"))
    ingest(store)
    assert store.rows("SELECT state FROM runs")[0][0] == "running"
    shutil.rmtree(run.path)
    ingest(store)
    assert [tuple(r) for r in store.rows("SELECT state, detail FROM runs")] == [("lost", "its directory is gone")]


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("runs"))
    with open_store(home) as store:
        store.rows("PRAGMA journal_mode = delete")
    return home.database.read_bytes()


events = st.lists(
    st.tuples(
        st.integers(1, 2),  # attempt
        st.integers(0, 5),  # step
        st.dictionaries(st.sampled_from(["a", "b/c", "\u202e"]), st.floats() | st.text(max_size=3) | st.integers(), max_size=3),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=events, cuts=st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=6))
def test_any_interleaving_and_cut_gives_the_same_rows(tmp_path, empty_database, events, cuts):
    """The bytes appear in pieces of any size, cut anywhere; the result equals one ingest of the whole directory."""
    shutil.rmtree(tmp_path, ignore_errors=True)
    full = wire.RunDir(tmp_path / "source" / "r").create()
    writers = {n: wire.LogWriter(full, "r", full.claim_attempt(), "events", rotate=300) for n in (1, 2)}
    for attempt, step, values in events:
        writers[attempt].write("metrics", step=step, metrics=values)
    home, other = (Home(tmp_path / name, tmp_path / "runs").create() for name in ("home", "other"))
    for each in (home, other):
        each.database.write_bytes(empty_database)
    run = wire.RunDir(home.runs_root / "r").create()
    run.meta.write_text(json.dumps({"run": "r", "name": "\x1b[2J\ud800", "created": 1.0, "recipe": "x"}))
    files = [p.relative_to(full.path) for p in sorted(full.path.glob("attempts/*/events/*"))]
    with open_store(home) as store:
        for size, forwards in [*cuts, (1 << 30, True)]:
            for relative in files if forwards else reversed(files):
                _append(full.path / relative, run.path / relative, size)
            ingest(store)
        stepwise = content(store)
    with open_store(other) as store:
        ingest(store)
        assert content(store) == stepwise


def _append(source, target, size):
    """Copy up to `size` more bytes, as a writer would: a file that follows another only exists when that one is whole."""
    before = source.with_name(f"{int(source.stem) - 1:06d}.jsonl")
    copied = target.parent / before.name
    if before.exists() and (not copied.exists() or copied.stat().st_size < before.stat().st_size):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    done = target.stat().st_size if target.exists() else 0
    with target.open("ab") as file:
        file.write(source.read_bytes()[done : done + size])


FIELDS = ("name", "created", "tags", "recipe", "command", "group", "phase", "step", "beat", "detail", "attempt", "pid", "host",
          "reason", "code", "resumable", "t", "boot", "start", "action", "text", "who", "rollout_id", "segments", "seq", "kind",
          "metrics")  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=2),
    max_leaves=4,
)
RECORD = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8).map(lambda r: json.dumps(r).encode()) | st.binary(
    max_size=20
)
FILES = ("meta.json", "status.json", "notes.jsonl", "attempts/1/exit.json", "attempts/1/supervisor.json",
         "attempts/1/events/000000.jsonl", "attempts/1/supervisor/000000.jsonl")  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(st.sampled_from(FILES), RECORD), rollout=RECORD)
def test_any_record_is_survived(tmp_path, empty_database, files, rollout):
    shutil.rmtree(tmp_path, ignore_errors=True)
    home = Home(tmp_path / "home", tmp_path / "runs").create()
    home.database.write_bytes(empty_database)
    run = wire.RunDir(home.runs_root / "r").create()
    run.meta.write_text("{}")
    for name, data in files.items():
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + b"\n")
    (run.rollouts / "1-1.jsonl.gz").write_bytes(gzip.compress(rollout))
    with open_store(home) as store:
        ingest(store)
        ingest(store)
        for found in list_runs(store):
            json.dumps(as_json(found))
            metrics.latest(store, found)
            metrics.events(store, found)
