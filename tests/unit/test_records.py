"""The invariant checker: sound records pass, each broken invariant is named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.records import InvariantError, Rollout, Segment, check_rollout, check_segments


def sound(prompt=2, sampled=3, feedback=2, more=1) -> Segment:
    """Prompt, a sampled turn of version 1, feedback, a sampled turn of version 2; routing of 2 layers, top-1."""
    mask = np.array([False] * prompt + [True] * sampled + [False] * feedback + [True] * more)
    versions = np.where(mask, 1, -1).astype(np.int32)
    versions[prompt + sampled + feedback :] = 2
    logprobs = np.where(mask, -0.5, 0.0).astype(np.float32)
    routing = np.zeros((len(mask), 2, 1), dtype=np.int16)
    routing[-1] = -1
    return Segment(np.arange(len(mask), dtype=np.int32), mask, logprobs, versions, routing)


def changed(name: str, index, value) -> Segment:
    segment = sound()
    array = getattr(segment, name).copy()
    array[index] = value
    return replace(segment, **{name: array})


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5), st.integers(0, 5))
def test_sound_segments_pass(prompt, sampled, feedback, more):
    segment = sound(prompt, sampled, feedback, more)
    check_segments([segment], vocab_size=len(segment), newest_version=2)
    assert (len(segment), segment.sampled) == (prompt + sampled + feedback + more, sampled + more)
    check_segments([replace(segment, routed_experts=None), sound(prompt, 1, 1, 1)])


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (replace(sound(), logprobs=np.zeros(3, np.float32)), r"logprobs has shape \(3,\), the segment has 8 tokens"),
        (replace(sound(), loss_mask=np.zeros(8, np.int8)), "loss_mask must be bool"),
        (changed("loss_mask", 0, True), "the first token cannot be a sampled one"),
        (changed("token_ids", 4, -1), "outside the vocabulary"),
        (changed("token_ids", 4, 8), "outside the vocabulary"),
        (changed("logprobs", 3, np.nan), "no finite behaviour log-prob"),
        (changed("logprobs", 3, -np.inf), "no finite behaviour log-prob"),
        (changed("logprobs", 3, 0.1), "above 0"),
        (changed("logprobs", 3, -9999.0), "'missing' value"),
        (changed("logprobs", 0, -0.1), "not sampled carries a log-prob"),
        (changed("versions", 3, -1), "versions must be set on sampled tokens"),
        (changed("versions", 0, 1), "-1 elsewhere"),
        (changed("versions", 7, 3), "claims version 3, the newest is 2"),
        (changed("versions", 7, 0), "versions go backwards"),
        (replace(sound(), routed_experts=np.zeros((7, 2, 1), np.int16)), r"expected \(8, layers, top_k\)"),
        (replace(sound(), routed_experts=np.zeros((8, 2), np.int16)), r"expected \(8, layers, top_k\)"),
    ],
)
def test_each_broken_invariant_is_named(segment, message):
    with pytest.raises(InvariantError, match=message):
        check_segments([sound(), segment, sound()], vocab_size=8, newest_version=2)


def test_a_rollout_without_a_sampled_token_is_sound_only_when_it_failed():
    empty = replace(sound(2, 0, 0, 0), routed_experts=None)
    with pytest.raises(InvariantError, match="no sampled token"):
        check_rollout(Rollout("r", "p", [empty]))
    check_rollout(Rollout("r", "p", [empty], error="gone"))
    with pytest.raises(InvariantError, match="backwards"):
        check_rollout(Rollout("r", "p", [sound(), changed("versions", 7, 0)]))


def test_sampled_tokens_of_all_segments_count():
    assert Rollout("r", "p", [sound(), sound()]).sampled == 8
