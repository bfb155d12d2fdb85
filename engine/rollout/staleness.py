"""When a batch may leave without making a group that is still in flight too old to train. Pure."""

from collections.abc import Sequence


def must_finish(version: int, max_staleness: int, batch_size: int, finished: Sequence[int], in_flight: Sequence[int]) -> bool:
    """Whether the next batch should wait for groups in flight, because later batches could not train all in time.

    finished, in_flight   admission version of every group, the finished ones in the order in which they leave

    A group of admission version a is in time up to the batch of version a + max_staleness. With `spare` batches to come
    in time after this one, at most spare x batch_size groups that are due by then may be left behind. Groups that are
    too old already are past waiting for.
    """
    oldest = version - max_staleness
    left = finished[batch_size:]
    for spare in range(max_staleness + 1):
        running = sum(oldest <= a <= oldest + spare for a in in_flight)
        behind = sum(oldest <= a <= oldest + spare for a in left)
        if running and running + behind > spare * batch_size:
            return True
    return False
