"""What routing replay does to the gap between a bf16 sampler and the fp32 trainer, on the same recorded batches."""

import numpy as np
import pytest
import torch

from engine.algo.mismatch import finish_gap, gap_sums
from engine.batch import prepare
from engine.recipes import load
from engine.train.passes import logprob_pass, replayed_logprobs
from tests.real_parts import real_parts

# Few tokens are routed differently, so a small batch may hold next to none of them: bf16 alone is then all of its gap.
BATCHES, PROMPTS = 10, 128


def gaps(trainer, order):
    """k3 of the same tokens with the sampler's experts and with the live ones."""
    sums = {True: {}, False: {}}
    for step in trainer._load(order):
        for batch in step:
            replayed = replayed_logprobs(trainer.policy, batch, batch.mask_BT)
            live = logprob_pass(trainer.policy, batch.input_ids_BT, batch.mask_BT, batch.temperatures_BT)
            for with_replay, logprobs_BT in ((True, replayed), (False, live)):
                for key, value in gap_sums(logprobs_BT, batch.rollout_logprobs_BT, batch.mask_BT).items():
                    sums[with_replay][key] = sums[with_replay].get(key, 0) + value
    return finish_gap(sums[True])["k3_kl"], finish_gap(sums[False])["k3_kl"]


@pytest.mark.long
async def test_replay_brings_sampler_and_trainer_closer(tmp_path):
    torch.set_num_threads(1)
    flags = ["--train.max_staleness", "0", "--tiny.warmup_steps", "100", "--rollout.batch_size", str(PROMPTS)]
    recipe, config, problems = load("demo", flags)
    assert not problems
    agent = recipe.path.parent / "sort_digits" / "agent.py"
    ratios, mismatches = [], []
    async with real_parts(config, agent, tmp_path) as parts:
        parts.pool.start()
        for version in range(BATCHES):
            batch = prepare(await parts.pool.next_batch(), 0, config)
            with_replay, live = gaps(parts.trainer, batch.order)
            ratios.append(with_replay / live)
            report = parts.trainer.train(batch.order)
            mismatches.append(report.metrics["routing/mismatch_frac"])
            assert report.metrics["routing/replayed_mismatch_frac"] == 0
            await parts.publish(version + 1)
    print("k3 with replay / without:", np.round(ratios, 3), "mean", np.mean(ratios))
    print("routing mismatch before replay:", np.round(mismatches, 4))
    assert np.mean(ratios) <= 0.8
    assert np.mean(mismatches) > 0  # a single batch may route the same everywhere
