"""Scenario files: made from run directories, read back, refused when they are something else."""

import gzip
import json
from collections import Counter

import pytest

from molt_tui.errors import MoltError, NotFound
from molt_tui.scenarios.archive import load, names, parse
from molt_tui.scenarios.recorder import record
from molt_tui.verdict import RULES
from recipes.sort_digits.agent import score_answer
from tests.make_healthy import STEPS, make


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return make(tmp_path_factory.mktemp("healthy"))


def test_recording_twice_gives_the_same_bytes_without_names_of_people(healthy):
    meta = json.loads(healthy.meta.read_text()) | {"user": "ada", "host": "secret-host"}
    healthy.meta.write_text(json.dumps(meta))
    first = record(healthy.path, "t", "a", "balanced")
    assert first == record(healthy.path, "t", "a", "balanced")
    scenario = parse("x", first)
    assert str(healthy.path).encode() not in b"".join(scenario.files.values())
    assert "user" not in scenario.meta and "host" not in scenario.meta


def test_times_and_order_survive(healthy):
    scenario = parse("x", record(healthy.path, "t", "a", "balanced"))
    assert scenario.max_steps == STEPS
    assert scenario.items[0].payload["phase"] == "starting"
    assert scenario.items[-1].action == "exit"
    assert [i.t for i in scenario.items] == sorted(i.t for i in scenario.items)
    steps = [i.payload["step"] for i in scenario.items if i.action == "events" and i.payload["kind"] == "metrics"]
    assert steps == list(range(1, STEPS + 1))
    assert 250 < scenario.duration_s < 350


def test_a_small_rollout_budget_keeps_the_last_step(healthy):
    scenario = parse("x", record(healthy.path, "t", "a", "balanced", rollout_bytes=2000))
    kept = [item.name for item in scenario.items if item.action == "rollouts"]
    assert f"1-{STEPS}.jsonl.gz" in kept
    assert len(kept) < 10
    assert all(gzip.decompress(item.payload) for item in scenario.items if item.action == "rollouts")


def test_every_shipped_scenario_names_a_rule():
    assert "healthy" in names()
    for name in names():
        assert load(name).verdict in {rule.name for rule in RULES}


def test_the_healthy_run_has_whole_groups_with_the_expected_answer():
    scenario = load("healthy")
    for item in (item for item in scenario.items if item.action == "rollouts"):
        records = [json.loads(line) for line in gzip.decompress(item.payload).splitlines()]
        assert set(Counter(record["group_id"] for record in records).values()) == {8}
        for one in records:
            (segment,) = one["segments"]
            answer = "".join(piece for piece, sampled in zip(segment["pieces"], segment["mask"]) if sampled)
            assert score_answer(answer.removesuffix("<|im_end|>"), one["label"]) == pytest.approx(one["reward"])


def test_what_is_no_scenario_is_refused_in_one_line(tmp_path):
    with pytest.raises(NotFound, match=r"no scenario 'nope'; there are: .*healthy"):
        load("nope")
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"not a tar")
    with pytest.raises(MoltError, match="is not a scenario"):
        load(str(broken))
    with pytest.raises(NotFound, match="not a run directory"):
        record(tmp_path, "t", "a", "balanced")
