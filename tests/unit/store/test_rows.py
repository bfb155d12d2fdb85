import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.store import rows

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("raw", "stored"),
    [
        (1.5, (1.5, None, None)), (3, (3.0, None, None)), (True, (1.0, None, None)), (math.nan, (None, "nan", None)),
        ("nan", (None, "nan", None)), (-math.inf, (None, "-inf", None)), ("inf", (None, "inf", None)),
        (10**400, (None, "inf", None)), (-(10**400), (None, "-inf", None)), ([1, "nan"], (None, None, '[1,"nan"]')),
        ("engine-1", (None, None, '"engine-1"')), (None, None),
    ],
)  # fmt: skip
def test_metric_value(raw, stored):
    assert rows.metric_value(raw) == stored


def test_integer_refuses_what_sqlite_cannot_hold():
    assert [rows.integer(v) for v in (3, 3.0, 3.5, "3", True, None, 1 << 63, -(1 << 63))] == [
        3, 3, None, None, None, None, None, -(1 << 63)]  # fmt: skip
    assert [rows.number(v) for v in (1, 2.5, math.nan, "nan", 10**400)] == [1.0, 2.5, None, None, None]


def test_rollout_row_counts_sampled_tokens_only():
    segment = {"mask": [0, 1, 1, 1], "versions": [-1, 3, 3, 4], "kept": [0, 1, 0, 1], "pieces": ["a", "b", "\ud800", "c"],
               "routing_mismatch": [[], [0, 1], [], [1]]}  # fmt: skip
    row = rows.rollout_row({"attempt": 1, "step": 4, "rollout_id": "g-0", "reward": "nan", "segments": [segment]})
    assert (row["sampled"], row["masked"], row["mismatched"], row["min_version"], row["max_version"]) == (3, 1, 2, 3, 4)
    assert row["reward"] is None and row["text"] == "ab?c"
    row = rows.rollout_row({"attempt": 1, "step": 4, "rollout_id": "g-1", "segments": [{"mask": [0, 1]}]})
    assert (row["sampled"], row["masked"], row["mismatched"], row["min_version"]) == (1, None, None, None)


@given(st.dictionaries(st.sampled_from(["attempt", "step", "rollout_id", "segments", "reward", "turns"]), JSON_VALUES))
def test_rollout_row_takes_any_json(record):
    record["segments"] = record.get("segments") if isinstance(record.get("segments"), list) else [record]
    row = rows.rollout_row(record)
    assert row is None or json.dumps(row)


@given(JSON_VALUES)
def test_metric_value_takes_any_json(value):
    stored = rows.metric_value(value)
    assert stored is None or sum(part is not None for part in stored) == 1
