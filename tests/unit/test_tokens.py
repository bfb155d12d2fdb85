"""Rollouts token by token: why a token was not trained, borders, and records of any shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algo.correction import CorrectionRule, importance_weights
from molt_tui import tokens
from molt_tui.store.rows import rollout_row
from molt_tui.tokens import FEEDBACK, HIGH, LOW, PROMPT, STALE, TRAINED, parse, rule_of
from tests.traced_run import BAD, CALL, CONFIG_FLAT, RESULT, records
from tests.traced_run import PROMPT as ASKED

GOOD_ROLLOUT, BAD_ROLLOUT = (parse(record, CONFIG_FLAT) for record in records(12)[:2])


def test_every_token_has_a_state_with_its_reason():
    rollout = BAD_ROLLOUT
    feedback = range(len(ASKED) + len(CALL), len(ASKED) + len(CALL) + len(RESULT))
    assert set(rollout.states[: len(ASKED)]) == {PROMPT} and {rollout.states[i] for i in feedback} == {FEEDBACK}
    assert rollout.states[13:26] == [STALE] * 13 and [rollout.states[i] for i in (39, 40, 41)] == [TRAINED, LOW, HIGH]
    assert rollout.reason(13) == "masked: over age (at most 2 behind)" and rollout.staleness(13) == 3
    assert rollout.reason(40) == "masked: ratio 0.301 is below 0.5" and rollout.reason(41) == "masked: ratio 2.46 is above 2"
    assert rollout.ratio(40) == pytest.approx(math.exp(-1.2), rel=1e-4) and rollout.ratio(0) is None
    assert (rollout.sampled, rollout.masked) == (len(CALL) + len(BAD), 15)
    assert rollout.advantage_of(40) == -0.8 and rollout.advantage_of(0) is None


def test_borders_are_where_the_version_changes_and_where_segments_begin():
    assert GOOD_ROLLOUT.borders == {13: "v10", 20: "v11"}
    two = parse(records(12)[3], CONFIG_FLAT)
    assert two.borders == {13: "v11", 26: "segment 2", 29: "v11"} and (two.segment(25), two.segment(26)) == (0, 1)


def test_a_record_without_the_outcome_of_training_says_so():
    record = records(12)[1]
    for name in ("kept", "train_logprobs", "routing_mismatch"):
        del record["segments"][0][name]
    del record["version"]
    rollout = parse(record, {})
    assert set(rollout.states) == {PROMPT, FEEDBACK, TRAINED}
    assert (rollout.ratio(13), rollout.staleness(13), rollout.layers[13]) == (None, None, None)
    row = rollout_row(record)
    assert (row["masked"], row["ratio_extreme"], row["staleness_max"], row["mismatched"]) == (None, None, None, None)


def test_the_figures_of_a_rollout():
    row = rollout_row(records(12)[1])
    assert (row["sampled"], row["masked"], row["mismatched"], row["staleness_max"], row["trained_version"]) == (27, 15, 1, 3, 11)
    assert row["ratio_extreme"] == pytest.approx(math.exp(-1.2), rel=1e-4)
    assert row["text"][: row["prompt_chars"]] == "".join(ASKED) and row["label"] == "391"


def test_advantages_of_single_tokens_win_over_the_rollouts():
    record = records(12)[0]
    record["segments"][0]["advantages"] = [0.0] * 13 + [0.5] * 26
    assert parse(record, {}).advantage_of(13) == 0.5


RULES = [("token", "ratio"), ("seq", "ratio"), ("geo", "ratio"), ("token", "binary_kl"), ("seq", "binary_kl"), ("token", "tv")]


@pytest.mark.parametrize(("level", "gating"), RULES)
def test_the_reason_agrees_with_the_loss(level, gating):
    """What the screen says about a masked token is what engine/algo/correction.py did to it."""
    low, high = (0.0, 0.02) if gating != "ratio" else (0.7, 1.3)
    rule = CorrectionRule(level, "mask", gating, low, high)
    generator = torch.Generator().manual_seed(5)
    old = -torch.rand(4, 9, generator=generator) - 0.1
    new = old + 0.4 * torch.randn(4, 9, generator=generator)
    mask = torch.rand(4, 9, generator=generator) > 0.2
    result = importance_weights(new.double(), old.double(), mask, rule)
    config = {"algo.advantage.is_correction_level": level, "algo.advantage.is_correction_gating": gating,
              "algo.advantage.is_correction_threshold": [low, high]}  # fmt: skip
    for s in range(4):
        segment = {"token_ids": list(range(9)), "pieces": ["x"] * 9, "mask": mask[s].int().tolist(), "versions": [0] * 9,
                   "logprobs": old[s].double().tolist(), "train_logprobs": new[s].double().tolist(),
                   "kept": (mask[s] & ~result.masked_ST[s]).int().tolist()}  # fmt: skip
        rollout = parse({"segments": [segment]}, config)
        for t in range(9):
            if mask[s, t]:
                expected = LOW if result.below_ST[s, t] else HIGH if result.above_ST[s, t] else TRAINED
                assert rollout.states[t] == expected


def test_a_single_threshold_is_an_upper_bound():
    rule = rule_of({"algo.advantage.is_correction_threshold": (3.0,), "algo.advantage.is_correction_level": "token"})
    assert (rule.low, rule.high, rule.masks) == (0.0, 3.0, True) and not rule_of({}).masks


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=12,
)  # fmt: skip
FIELDS = ("token_ids", "pieces", "mask", "logprobs", "train_logprobs", "versions", "kept", "routing_mismatch", "advantages")
segments = st.dictionaries(st.sampled_from(FIELDS), st.lists(st.sampled_from([0, 1]) | anything, max_size=6) | anything)
NAMES = ("run", "attempt", "step", "rollout_id", "prompt_id", "group_id", "reward", "advantage", "info", "label", "version")
wild = st.dictionaries(st.sampled_from(NAMES), anything).flatmap(
    lambda record: st.lists(segments | anything, max_size=3).map(lambda found: {**record, "segments": found})
)


@given(wild)
def test_no_record_is_too_strange(record):
    rollout = parse(record, CONFIG_FLAT)
    columns = (rollout.pieces, rollout.states, rollout.logprobs, rollout.train_logprobs, rollout.versions, rollout.layers)
    assert {len(column) for column in columns} == {len(rollout)}
    for i in range(len(rollout)):
        assert rollout.reason(i) and rollout.states[i] in tokens.SAMPLED | {PROMPT, FEEDBACK}
        ratio = rollout.ratio(i)
        assert ratio is None or 0 < ratio < 1e14
    rollout_row(record)
