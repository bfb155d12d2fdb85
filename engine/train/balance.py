"""How the samples of a batch are spread: over optimizer steps, trainer ranks and micro-batches. Pure Python."""

import heapq
from collections import Counter
from collections.abc import Sequence

from engine.train.plan import OptimizerStep


def plan_optimizer_steps(
    lengths: Sequence[int], tokens: Sequence[int], rollouts: Sequence[int], prompts: Sequence[int], *, rollouts_per_step: int,
    ranks: int, budget: int, packed: bool = False,
) -> list[OptimizerStep]:  # fmt: skip
    """Cut a batch into optimizer steps and spread each one over the ranks.

    lengths   tokens of each sample (segment), prompt included
    tokens    tokens of each sample that will be trained: sampled and not over age
    rollouts  rollout that each sample belongs to; steps take whole rollouts in order of appearance
    prompts   prompt (group) that each sample belongs to
    budget    tokens of one micro-batch, padding included: rows x longest row; packed: their sum

    Every rank gets the same number of micro-batches, the missing ones empty, because all ranks must run the same passes.
    """
    order = {rollout: index for index, rollout in enumerate(dict.fromkeys(rollouts))}
    members: list[list[int]] = [[] for _ in range(-(-len(order) // rollouts_per_step))]
    for sample, rollout in enumerate(rollouts):
        members[order[rollout] // rollouts_per_step].append(sample)
    steps = []
    for samples in members:
        shares = spread_over_ranks(samples, lengths, ranks)
        batches = [form_micro_batches(share, lengths, budget, packed) for share in shares]
        count = max(len(b) for b in batches)
        padded = [b + [[] for _ in range(count - len(b))] for b in batches]
        per_prompt: Counter[int] = Counter()
        for sample in samples:
            per_prompt[prompts[sample]] += tokens[sample]
        rows, trained_prompts = sum(tokens[s] > 0 for s in samples), sum(count > 0 for count in per_prompt.values())
        by_sample = {s: per_prompt[prompts[s]] for s in samples}
        steps.append(OptimizerStep(padded, sum(per_prompt.values()), rows, trained_prompts, by_sample))
    return steps


def spread_over_ranks(samples: Sequence[int], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens: the loads differ by at most the longest sample."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for sample in sorted(samples, key=lambda s: (-lengths[s], s)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(sample)
        heapq.heappush(loads, (load + lengths[sample], rank))
    return shares


def form_micro_batches(samples: Sequence[int], lengths: Sequence[int], budget: int, packed: bool = False) -> list[list[int]]:
    """Fill micro-batches longest first, so that rows of one micro-batch have similar lengths and little padding.

    rows x longest row (packed: the sum of lengths) stays within `budget`; a sample longer than that gets a micro-batch of
    its own.
    """
    batches: list[list[int]] = []
    for sample in sorted(samples, key=lambda s: (-lengths[s], s)):
        last = [*batches[-1], sample] if batches else []
        size = sum(lengths[s] for s in last) if packed else len(last) * lengths[last[0]] if last else 0
        if not batches or size > budget:
            batches.append([])
        batches[-1].append(sample)
    return batches
