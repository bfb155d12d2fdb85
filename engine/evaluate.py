"""Evaluation: held-out prompts through the same runners and engines, own sampling settings, one policy version."""

from __future__ import annotations

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
    found = {
        "failed": float(sum(g.failed for g in groups)),
        "version": float(version),
        "rollouts": float(len(rollouts)),
    }
    if rollouts:
        found |= {
            "exact_frac": float(np.mean([bool(g.rollouts) and g.rollouts[0].score >= 1.0 for g in groups])),
            "score_mean": float(np.mean([r.score for r in rollouts])),
            "reward_mean": float(np.mean([r.reward for r in rollouts])),
            "response_len_mean": float(np.mean([r.sampled for r in rollouts])),
            "truncated_frac": float(np.mean([r.truncated for r in rollouts])),
        }
    return found
