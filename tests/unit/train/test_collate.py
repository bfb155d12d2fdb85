import numpy as np
import pytest
import torch
from helpers import VOCAB, order, rollouts

from engine.records import InvariantError, Rollout, Segment
from engine.train.collate import RoutingShape, collate, pad_sequences, replayed_inputs, resolve_segments
from engine.train.plan import OptimizerStep, SampleRef, TrainOrder

CPU = torch.device("cpu")
SHAPE = RoutingShape([1, 4], top_k=2, num_experts=8)


def two_turns() -> Segment:
    """Prompt of 2, sampled 1, feedback 1, sampled 2; the versions rise within it."""
    mask = np.array([0, 0, 1, 0, 1, 1], bool)
    routing = np.arange(6 * 2 * 2).reshape(6, 2, 2).astype(np.int16) % 8
    routing[3] = -1
    return Segment(
        token_ids=np.array([3, 4, 5, 6, 7, 8], np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        versions=np.array([-1, -1, 3, -1, 4, 5], np.int32),
        routed_experts=routing,
    )


def test_tokens_stay_aligned_and_over_age_tokens_are_masked():
    payload = [Rollout("r", "p", [two_turns()])]
    sample = SampleRef(payload, 0, 0, 6, np.array([0.1, 0.2, 0.3], np.float32))
    ordered = TrainOrder(5, 1, [sample], [OptimizerStep([[[0]]], 2, 1, 1, {0: 2})])
    batch = collate([0], {0: two_turns()}, ordered, SHAPE, CPU)
    assert batch.input_ids_BT.tolist() == [[3, 4, 5, 6, 7, 8]]
    assert batch.mask_BT.tolist() == [[False, False, False, False, True, True]]
    assert batch.trained_N.tolist() == [3, 4]
    np.testing.assert_allclose(batch.advantages_BT, [[0, 0, 0.1, 0, 0.2, 0.3]])
    assert batch.staleness.tolist() == [1, 0]
    assert batch.masked_tokens == 1
    # Both MoE layers of every input: all tokens but the last; the feedback token was not reported.
    first, second = [[0, 1], [2, 3]], [[4, 5], [6, 7]]
    assert batch.routing.ids_NLk.tolist() == [first, second, first, [[-1, -1], [-1, -1]], first]
    assert batch.routing.counted_N.all()


def test_rows_are_padded_on_the_right_and_padding_is_not_counted():
    records = rollouts(2)
    ordered = order(records)
    segments = {i: r.segments[0] for i, r in enumerate(records)}
    batch = collate([0, 1], segments, ordered, SHAPE, CPU)
    counted_BT = batch.routing.counted_N.view(2, -1)
    for row, record in enumerate(records):
        length = len(record.segments[0])
        assert batch.input_ids_BT[row, :length].tolist() == record.segments[0].token_ids.tolist()
        assert not batch.input_ids_BT[row, length:].any() and not batch.mask_BT[row, length:].any()
        assert int(counted_BT[row].sum()) == length - 1


def test_an_empty_micro_batch_trains_nothing():
    batch = collate([], {}, order(rollouts(1)), SHAPE, CPU)
    assert batch.input_ids_BT.shape == (1, 2)
    assert not batch.mask_BT.any() and not batch.routing.counted_N.any()


def test_each_payload_is_fetched_once():
    records = rollouts(3)
    asked = []

    def get(references):
        asked.extend(references)
        return [records] * len(references)

    ordered = order(records)
    for sample in ordered.samples:
        sample.payload = "reference"
    assert sorted(resolve_segments(ordered, [2, 0], get, VOCAB)) == [0, 2]
    assert asked == ["reference"]


def test_broken_records_are_refused():
    records = rollouts(1)
    with pytest.raises(InvariantError, match="vocabulary"):
        resolve_segments(order(records), [0], lambda r: r, vocab_size=2)
    short = order(records)
    short.samples[0].length += 1
    with pytest.raises(InvariantError, match="its order says"):
        resolve_segments(short, [0], lambda r: r, VOCAB)
    with pytest.raises(InvariantError, match="routing rows"):
        collate([0], {0: records[0].segments[0]}, order(records), RoutingShape([0], 2, 8), CPU)
    with pytest.raises(InvariantError, match="names expert"):
        collate([0], {0: records[0].segments[0]}, order(records), RoutingShape([0, 1], 2, 4), CPU)


def test_sequences_to_score_want_all_but_the_first_token():
    ids_BT, wanted_BT = pad_sequences([[1, 2, 3], [4]], CPU)
    assert ids_BT.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert wanted_BT.tolist() == [[False, True, True], [False, False, False]]


def test_each_token_trains_at_the_temperature_that_sampled_it():
    segment = two_turns()
    segment.temperatures = np.array([1, 1, 0.5, 1, 2, 2], np.float32)
    sample = SampleRef([Rollout("r", "p", [segment])], 0, 0, 6, 1.0)
    ordered = TrainOrder(5, 9, [sample], [OptimizerStep([[[0]]], 3, 1, 1, {0: 3})])
    assert collate([0], {0: segment}, ordered, SHAPE, CPU).temperatures_BT.tolist() == [[1, 1, 0.5, 1, 2, 2]]
    segment.temperatures[4] = 0
    with pytest.raises(InvariantError, match="greedily"):
        collate([0], {0: segment}, ordered, SHAPE, CPU)


def test_the_border_decides_which_choices_are_replayed():
    # Prompt 0 1, sampled 2 3 by version 4, feedback 4, sampled 5 6 by version 5. Input t feeds the choice for token t + 1;
    # the prompt belongs to the version that sampled first, the feedback to the one that sampled after it.
    segment = Segment(
        token_ids=np.arange(7, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 1, 0, 1, 1], bool),
        logprobs=np.zeros(7, np.float32),
        versions=np.array([-1, -1, 4, 4, -1, 5, 5], np.int32),
    )
    assert replayed_inputs(segment, "both").tolist() == [True] * 6
    assert replayed_inputs(segment, "old").tolist() == [True, True, True, False, False, False]
    assert replayed_inputs(segment, "new").tolist() == [False, False, False, True, True, True]
    # Of one version alone everything is replayed, whatever the setting.
    segment.versions[segment.loss_mask] = 5
    assert replayed_inputs(segment, "old").all() and replayed_inputs(segment, "new").all()
