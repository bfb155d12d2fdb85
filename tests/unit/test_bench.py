"""A bench that misses a goal, or does not measure it, says so."""

from tests.bench.__main__ import benches, missed

GOALS = {"pool/speed": {"at_least": 2.0}, "cockpit/key_ms": {"at_most": 100}, "pool/gone": {"at_most": 1}}


def test_goals():
    figures = {"pool/speed": 2.0, "cockpit/key_ms": 101.0, "pool/gone": 1.0}
    assert missed(figures, GOALS, ["pool", "cockpit"]) == ["cockpit/key_ms: 101, asked at most 100"]
    assert missed({"pool/speed": 1.9}, GOALS, ["pool"]) == ["pool/speed: 1.9, asked at least 2", "pool/gone: not measured"]


def test_every_bench_is_found():
    assert {"pool", "overlap", "cockpit"} <= set(benches())
