"""Evaluation: held-out prompts through the same runners and engines, own sampling settings, one policy version."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.rollout.transport import FinishedGroup, Prompt, Sampling


@dataclass
class Evaluator:
    """`sets` maps a dataset's short name to its prompts."""

    sets: dict[str, list[Prompt]]
    sampling: Sampling
    n_samples: int

    async def run(self, pool: Any, version: int) -> dict[str, float]:
        """eval/<name>/* of every dataset; empty without datasets."""
        metrics: dict[str, float] = {}
        for name, prompts in self.sets.items():
            groups = await pool.run_eval(prompts, self.sampling, self.n_samples)
            metrics |= {f"eval/{name}/{k}": v for k, v in summarise(groups, version).items()}
        return metrics


def summarise(groups: Sequence[FinishedGroup], version: int) -> dict[str, float]:
    """Scores over all rollouts; `exact_frac` looks at the first rollout of each prompt, a failed one counts as wrong.

    Without a single rollout there is no score, only the count of failures.
    """
    rollouts = [r for g in groups for r in g.rollouts]
    found = {"failed": float(sum(g.failed for g in groups)), "version": float(version), "rollouts": float(len(rollouts))}
    values = {
        "response_len_mean": [r.sampled for r in rollouts],
        "truncated_frac": [r.truncated for r in rollouts],
        "reward_mean": [r.reward for r in rollouts if math.isfinite(r.reward)],
        "score_mean": [r.score for r in rollouts if math.isfinite(r.score)],
    }
    found |= {name: float(np.mean(measured)) for name, measured in values.items() if measured}
    if values["score_mean"]:
        found["exact_frac"] = float(np.mean([bool(g.rollouts) and g.rollouts[0].score >= 1.0 for g in groups]))
        found |= pass_at(groups)
    return found


def pass_at(groups: Sequence[FinishedGroup]) -> dict[str, float]:
    """pass_at_<k> for 1, 2, 4, ... up to the rollouts of every prompt, if there are several; failed rollouts count as wrong.

    1 - C(n - c, k) / C(n, k) with c of n rollouts right, averaged over prompts (Chen et al., "Codex", 2021).
    """
    counts = [len(g.rollouts) + g.failed + sum(g.dropped.values()) for g in groups]
    right = [sum(r.score >= 1.0 for r in g.rollouts) for g in groups]
    found, k = {}, 1
    while min(counts) > 1 and k <= min(counts):
        shares = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in zip(counts, right)]
        found[f"pass_at_{k}"] = float(np.mean(shares))
        k *= 2
    return found
