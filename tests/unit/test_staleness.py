"""When a batch has to wait for a group in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.staleness import must_finish


@pytest.mark.parametrize(
    ("bound", "finished", "in_flight", "expected"),
    [
        (1, [4, 5], [5, 5], False),  # both in flight may come with the next batch
        (1, [5, 5], [4, 5], True),  # admitted at 4 with bound 1: this batch is its last chance
        (1, [5, 5], [3, 5], False),  # 3 is too old already, nothing is won by waiting
        (1, [5, 5], [5, 5, 5], True),  # one more than the next batch holds
        (1, [4, 4, 4], [], False),  # nothing runs
        (0, [5, 5], [], False),
        (2, [5, 5], [4, 4, 5, 5], False),
        (2, [5, 5], [4, 4, 4, 5], True),
        (2, [5, 5], [3, 4, 4, 4], True),
    ],
)
def test_last_chances_at_version_5_with_batches_of_two(bound, finished, in_flight, expected):
    assert must_finish(5, bound, 2, finished, in_flight) is expected


@given(st.data())
def test_it_waits_exactly_when_waiting_can_keep_a_group_in_time(data):
    """Against playing the next batches out, where everything in flight finishes right after this batch."""
    version, bound, size = 10, data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
    admissions = st.lists(st.integers(version - bound, version), max_size=size * (bound + 1))
    finished, in_flight = sorted(data.draw(admissions)), data.draw(admissions)
    left_behind = sorted(finished[size:] + in_flight)
    late = [a for i, a in enumerate(left_behind) if version + 1 + i // size > a + bound]
    helps = any(running <= a for a in late for running in in_flight)
    assert must_finish(version, bound, size, finished, in_flight) == helps
