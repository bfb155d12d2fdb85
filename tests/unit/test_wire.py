"""Bytes of the run directory: values, atomic writes, logs that are cut, rotated or torn, claims."""

import json
import math
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import wire
from engine.wire import EventReader, LogWriter, RunDir, encode_line, to_wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def write_log(folder: Path, payloads: list, rotate: int) -> list[Path]:
    """Events of one attempt with these payloads; returns the files in order."""
    run = RunDir(folder).create()
    log = LogWriter(run, "r", run.claim_attempt(), "events", rotate)
    for payload in payloads:
        log.write("note", payload=payload)
    log.close()
    return sorted(log.folder.iterdir())


@given(st.floats())
def test_floats_survive(value):
    back = float(json.loads(encode_line({"x": value}))["x"])
    assert (math.isnan(back) and math.isnan(value)) or (back == value and math.copysign(1, back) == math.copysign(1, value))


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_lines_are_ascii_json_without_bare_nan(record):
    line = encode_line(record)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(line, parse_constant=refuse) == to_wire(record)


def test_numpy_values_become_plain():
    value = {"a": np.float32("nan"), "b": np.arange(3), "c": [np.int64(2)], "d": np.array([1.5, -np.inf])}
    assert to_wire(value) == {"a": "nan", "b": [0, 1, 2], "c": [2], "d": [1.5, "-inf"]}


@settings(max_examples=40)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers(60, 400), st.integers(0, 10**6))
def test_any_cut_of_the_log_loses_only_what_was_cut(tmp_path_factory, payloads, rotate, where):
    files = write_log(tmp_path_factory.mktemp("cut"), payloads, rotate)
    whole = b"".join(file.read_bytes() for file in files)
    cut = where % (len(whole) + 1)
    left = cut
    for file in files:
        size = file.stat().st_size
        os.truncate(file, min(size, left)) if left > 0 or file == files[0] else file.unlink()
        left -= min(size, left)
    reader = EventReader(files[0].parent)
    records = list(reader.poll())
    assert [r["seq"] for r in records] == list(range(whole[:cut].count(b"\n"))) and reader.bad_lines == 0
    assert [r["payload"] for r in records] == [to_wire(p) for p in payloads[: len(records)]]


@settings(max_examples=40)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers(60, 400), st.lists(st.integers(1, 200), min_size=1))
def test_a_reader_that_follows_sees_every_event_once(tmp_path_factory, payloads, rotate, portions):
    """The log arrives in arbitrary portions; the reader polls after each."""
    source = write_log(tmp_path_factory.mktemp("source"), payloads, rotate)
    copy = tmp_path_factory.mktemp("copy")
    reader, seen = EventReader(copy), []
    for file in source:
        content, position, turn = file.read_bytes(), 0, 0
        with (copy / file.name).open("ab", buffering=0) as target:
            while position < len(content):
                size = portions[turn % len(portions)]
                target.write(content[position : position + size])
                position, turn = position + size, turn + 1
                seen += [r["seq"] for r in reader.poll(limit_bytes=64)]
    assert seen == list(range(len(payloads))) and reader.bad_lines == 0


def test_rotation_starts_a_new_file_before_the_limit(tmp_path):
    files = write_log(tmp_path, ["x" * 50] * 10, 400)
    assert len(files) > 2 and all(file.stat().st_size <= 400 for file in files)
    assert [file.name for file in files[:2]] == ["000000.jsonl", "000001.jsonl"]


def test_garbage_is_counted_and_skipped(tmp_path):
    (file,) = write_log(tmp_path, [1, 2], 10**6)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\xff\x00{\n[1]\n{}\n" + lines[1])
    reader = EventReader(file.parent)
    assert [r["payload"] for r in reader.poll()] == [1, 2] and reader.bad_lines == 3


def test_an_event_after_a_full_disk_is_not_lost(tmp_path, monkeypatch):
    run = RunDir(tmp_path).create()
    log = LogWriter(run, "r", run.claim_attempt(), "events")
    write = os.write
    monkeypatch.setattr(wire.os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="only a part"):
        log.write("note", text="torn")
    monkeypatch.undo()
    log.write("note", text="whole")
    reader = EventReader(log.folder)
    assert [(r["seq"], r["text"]) for r in reader.poll()] == [(0, "whole")] and reader.bad_lines == 1


def test_a_failed_replacement_keeps_the_old_file_and_no_litter(tmp_path, monkeypatch):
    target = tmp_path / "status.json"
    wire.write_atomic(target, b"old")

    def refuse(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wire.os, "fsync", refuse)
    with pytest.raises(OSError):
        wire.write_atomic(target, b"new")
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


def test_everything_is_private(tmp_path):
    run = RunDir(tmp_path / "r").create()
    log = LogWriter(run, "r", run.claim_attempt(), "events")
    log.write("note", text="x")
    wire.append_line(run.notes, {"a": 1})
    wire.write_atomic(run.status, b"{}")
    for path in [run.path, *run.path.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_claims_at_the_same_moment_get_different_numbers(tmp_path):
    run = RunDir(tmp_path).create()
    claimed: list[int] = []
    barrier = threading.Barrier(8)

    def claim() -> None:
        barrier.wait()
        claimed.append(run.claim_attempt({"pid": 1}))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == run.attempt_numbers() == list(range(1, 9))
    assert sorted(p.name for p in run.attempts.iterdir()) == sorted(map(str, claimed))
    assert json.loads((run.attempt(3) / wire.OWNER_FILE).read_bytes()) == {"pid": 1}
