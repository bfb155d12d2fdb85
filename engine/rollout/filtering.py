"""Dynamic filtering: groups that all succeed or all fail give no gradient, so they make way for others (Yu et al., "DAPO",
2025)."""

import math
from dataclasses import replace

from engine.rollout.transport import FinishedGroup

FILTER_REASONS = {"dynamic_filter", "incomplete_group"}


def filtered(group: FinishedGroup, n_samples: int, keep: tuple[float, float]) -> FinishedGroup:
    """The group if it may train, else an empty one whose `dropped` counts its rollouts.

    It may when it has all `n_samples` rollouts and low < mean score < high; a rollout without a score lets its group pass.
    """
    reason = _refusal([r.score for r in group.rollouts], n_samples, keep)
    if reason is None:
        return group
    return replace(group, rollouts=[], payload=None, dropped=group.dropped | {reason: len(group.rollouts)})


def _refusal(scores: list[float], n_samples: int, keep: tuple[float, float]) -> str | None:
    if not scores:
        return None
    if len(scores) < n_samples:
        return "incomplete_group"
    # A missing score makes the mean NaN, which is neither too low nor too high.
    mean = math.fsum(scores) / len(scores)
    return "dynamic_filter" if mean <= keep[0] or mean >= keep[1] else None
