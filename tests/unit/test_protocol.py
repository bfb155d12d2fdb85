"""The golden run directory and the records, writers and readers of protocol.py."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine import metrics, protocol, wire
from tests.make_golden import GOLDEN, regenerate
from tests.records import read_exit, read_meta, read_status


def read_all(folder: Path) -> list[dict]:
    return list(wire.EventReader(folder).poll())


def content(path: Path) -> bytes:
    # The compressed bytes depend on the zlib build; what they hold does not.
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): content(p) for p in folder.rglob("*") if p.is_file()}


def test_golden_is_reproducible(tmp_path):
    regenerate(tmp_path / "golden")
    assert tree(tmp_path / "golden") == tree(GOLDEN)


def test_golden_events_validate_and_cover_every_kind():
    seen, models = set(), {model.model_fields["kind"].default: model for model in protocol.Event.__subclasses__()}
    for attempt in (1, 2):
        for stream in ("events", "supervisor"):
            records = read_all(GOLDEN / "attempts" / str(attempt) / stream)
            assert [r["seq"] for r in records] == list(range(len(records)))
            for record in records:
                models[record["kind"]].model_validate(record)
                seen.add(record["kind"])
    assert seen == set(models)


def test_golden_metrics_are_in_the_schema():
    for attempt in (1, 2):
        for record in read_all(GOLDEN / "attempts" / str(attempt) / "events"):
            for key in record.get("metrics", {}):
                assert metrics.describe(key), key


def test_golden_has_the_hard_cases():
    folder = GOLDEN / "attempts" / "1" / "events"
    assert len(list(folder.iterdir())) > 1
    assert not sorted(folder.iterdir())[-1].read_bytes().endswith(b"\n")
    step_3 = next(r for r in read_all(folder) if r["kind"] == "metrics" and r["step"] == 3)
    assert step_3["metrics"]["loss/policy"] == "nan" and step_3["metrics"]["optim/grad_norm"] == "inf"


def test_golden_records_validate():
    run = wire.RunDir(GOLDEN)
    assert read_meta(run).name == "golden"
    assert read_status(run).phase == "completed"
    assert [read_exit(run, n).reason for n in run.attempt_numbers()] == ["crashed", "completed"]
    assert protocol.read_record(run.attempt(2) / "progress.json", protocol.Progress).step == 9
    lines = gzip.decompress((GOLDEN / "rollouts" / "1-4.jsonl.gz").read_bytes()).splitlines()
    for line in lines:
        segment = protocol.TraceRollout.model_validate_json(line).segments[0]
        lengths = {len(getattr(segment, name)) for name in ("token_ids", "pieces", "mask", "logprobs", "versions", "kept")}
        assert lengths == {9}
    for line in (GOLDEN / "notes.jsonl").read_text().splitlines():
        protocol.Note.model_validate_json(line)


def test_reader_waits_for_the_end_of_a_torn_line(tmp_path):
    events = shutil.copytree(GOLDEN / "attempts" / "1" / "events", tmp_path / "events")
    reader = wire.EventReader(events)
    before = len(list(reader.poll()))
    with sorted(events.iterdir())[-1].open("ab") as file:
        file.write(b'"}\n')
    assert [r["kind"] for r in reader.poll()] == [] and reader.bad_lines == 1
    with sorted(events.iterdir())[-1].open("ab") as file:
        file.write(b'{"kind":"note","text":"after"}\n')
    assert [r["text"] for r in reader.poll()] == ["after"]
    assert before == len(read_all(events)) - 1


def test_emit_refuses_a_wrong_event_and_writes_nothing(tmp_path):
    run = wire.RunDir(tmp_path).create()
    events = protocol.EventWriter(run, "r", run.claim_attempt())
    with pytest.raises(ValidationError):
        events.emit(protocol.SyncEvent, bytes="many", seconds=1.0, pause_seconds=0.0)
    events.emit(protocol.NoteEvent, text="fine", step=3)
    (record,) = read_all(events.folder)
    assert record["seq"] == 0 and record["step"] == 3 and "version" not in record


def test_commands_are_taken_once_in_order_and_a_broken_one_is_removed(tmp_path):
    run = wire.RunDir(tmp_path).create()
    sent = [protocol.send_command(run, name, who="ada") for name in ("pause", "resume", "stop")]
    (run.control / "000.json").write_text("{not json")
    assert [c.id for c in protocol.take_commands(run)] == [c.id for c in sent]
    assert list(run.control.iterdir()) == [] and protocol.take_commands(run) == []


def test_records_keep_the_fields_of_a_newer_writer():
    status = protocol.Status.model_validate({"run": "r", "attempt": 1, "beat": 1, "phase": "running", "colour": "blue"})
    assert json.loads(status.model_dump_json())["colour"] == "blue"
