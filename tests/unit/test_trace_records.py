"""What the engine writes of a traced segment."""

import numpy as np

from engine.records import Segment
from engine.traces import trace_segment
from engine.train.plan import TraceTensors


def made(advantage):
    segment = Segment(
        token_ids=np.array([7, 8, 9], np.int32), loss_mask=np.array([0, 1, 1], bool),
        logprobs=np.array([0.0, -0.5, -0.25], np.float32), versions=np.array([-1, 3, 3], np.int32),
    )  # fmt: skip
    outcome = TraceTensors(0, np.array([0.0, -0.5, -1.25], np.float32), np.array([0, 1, 0], bool),
                           np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0]], bool))  # fmt: skip
    return trace_segment(segment, outcome, ["a", "b", "c"], advantage)


def test_a_segment_is_written_token_by_token():
    record = made(0.5)
    assert (record.mask, record.kept, record.versions) == ([0, 1, 1], [0, 1, 0], [-1, 3, 3])
    assert record.train_logprobs == [0.0, -0.5, -1.25] and record.routing_mismatch == [[], [0, 2], []]
    assert record.advantages is None


def test_advantages_of_their_own_stand_at_the_sampled_tokens():
    assert made(np.array([0.1, -0.2], np.float32)).advantages == [0.0, 0.1, -0.2]
