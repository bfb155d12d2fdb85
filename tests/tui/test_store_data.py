"""What the Traces, token and Query screens are told, from a real database and real run directories."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from molt_tui.errors import MoltError, NotFound
from molt_tui.store.home import Home
from molt_tui.tokens import Place
from molt_tui.tui.store_source import StoreSource
from tests.traced_run import RUN_ID, records, write_run


@pytest.fixture
def source(tmp_path) -> StoreSource:
    home = Home(tmp_path, tmp_path / "runs").create()
    write_run(home.runs_root)
    found = StoreSource(home)
    found.ingest()
    return found


def test_the_same_figures_from_the_file_and_from_the_database(source):
    step = source.traces(RUN_ID, 12, "recorded", False)
    everything = source.all_traces(RUN_ID, "", "recorded", False)
    assert (step.steps, step.step, len(step.lines), len(everything.lines)) == ([8, 12], 12, 6, 12)
    assert {line.key: line for line in step.lines}.items() <= {line.key: line for line in everything.lines}.items()
    assert source.traces(RUN_ID, None, "reward", False).lines[0].figures["reward"] == 1.0


def test_search_is_about_text_as_it_stands(source):
    def found(text):
        return [line.place.rollout_id for line in source.all_traces(RUN_ID, text, "recorded", False).lines]

    assert found("NEARLY") == ["tools:1#12/1", "tools:1#8/1"] and len(found("× 20")) == 4
    assert found("100 %") == [] and found("_") == [] == found("\\") and len(found("<|")) == 12
    (line, _) = source.all_traces(RUN_ID, "nearly", "recorded", False).lines
    assert "nearly" in line.response


def test_a_rollout_with_its_group_and_layers(source):
    page = source.rollout(RUN_ID, Place(1, 12, "tools:1#12/1"))
    assert (page.rewards, page.layers, page.rollout.masked) == ([1.0, 0.0, 1.0, 0.0], 4, 15)
    assert [r.rollout_id[-1] for r in source.group(RUN_ID, Place(1, 12, "tools:1#12/1"))] == ["0", "1", "2", "3"]
    with pytest.raises(NotFound, match="no rollout 'x'"):
        source.rollout(RUN_ID, Place(1, 12, "x"))


def test_an_older_engines_record_gets_its_version_from_the_events(source, tmp_path):
    path = tmp_path / "runs" / RUN_ID / "rollouts" / "1-000012.jsonl.gz"
    old = [{k: v for k, v in record.items() if k not in ("version", "label")} for record in records(12)]
    path.write_bytes(gzip.compress(b"".join(json.dumps(record).encode() + b"\n" for record in old)))
    page = source.rollout(RUN_ID, Place(1, 12, "tools:1#12/0"))
    assert (page.rollout.trained_version, page.rollout.label) == (12, None)  # no publication before it: the reported version


def test_what_can_be_completed(source):
    words = source.vocabulary()
    assert {"run_summary", "metric_curve", "ratio_extreme", "SELECT"} <= set(words.words)
    assert words.words.index("rollouts") < words.words.index("rollout_rows")
    assert {"reward/mean", RUN_ID} <= set(words.quoted)
    source.save_query("mine", "SELECT 1")
    assert source.vocabulary().saved[0].name == "mine"
    source.delete_query("mine")
    assert not any(query.own for query in source.vocabulary().saved)


def test_rows_lead_to_runs_and_rollouts(source):
    assert source.find_place({"run": RUN_ID, "step": 12}) == (RUN_ID, None)
    assert source.find_place({"id": 7, "name": "tools"}) == (RUN_ID, None)
    row = {"run": RUN_ID, "step": 12, "rollout_id": "tools:1#12/1"}
    assert source.find_place(row) == (RUN_ID, Place(1, 12, "tools:1#12/1"))
    assert source.find_place({"run": None, "value": 3}) is None and source.find_place({"run": "nothing"}) is None


def test_a_result_is_written_once(source, tmp_path):
    result = source.query("SELECT rollout_id, reward FROM rollouts WHERE step = 12 ORDER BY id", lambda: False)
    target = tmp_path / "out.csv"
    before = os.umask(0)
    try:
        assert source.write_result(result, "csv", str(target)) == str(target)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o600, "readable by its owner alone"
    assert target.read_text().splitlines()[:2] == ["rollout_id,reward", "tools:1#12/0,1.0"]
    with pytest.raises(MoltError, match="exists"):
        source.write_result(result, "csv", str(target))
    with pytest.raises(MoltError, match="cannot write"):
        source.write_result(result, "csv", str(tmp_path / "no" / "out.csv"))


def test_a_later_attempt_supersedes_the_steps_it_repeats(source, tmp_path):
    folder = tmp_path / "runs" / RUN_ID / "rollouts"
    again = [{**record, "attempt": 2} for record in records(12)[:2]]
    (folder / "2-000012.jsonl.gz").write_bytes(gzip.compress(b"".join(json.dumps(r).encode() + b"\n" for r in again)))
    keys = [line.key for line in source.all_traces(RUN_ID, "", "recorded", False).lines]
    assert len(keys) == 8 and [key for key in keys if "/12/" in key] == ["2/12/tools:1#12/0", "2/12/tools:1#12/1"]
    assert len(source.all_traces(RUN_ID, "nearly", "recorded", False).lines) == 2
    assert [line.key for line in source.traces(RUN_ID, 12, "recorded", False).lines] == [key for key in keys if "/12/" in key]
