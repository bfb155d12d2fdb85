"""What routing replay does to the gap between a bf16 sampler and the fp32 trainer, on the same recorded batches."""

import asyncio

import numpy as np
import pytest
import torch

from engine.algo.mismatch import finish_gap, gap_sums
from engine.batch import prepare
from engine.data import load_prompts
from engine.recipes import load
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.rollout.pool import RolloutPool
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from engine.specs import pool_settings
from engine.sync.publish import publish
from engine.train.actor import Trainer
from engine.train.passes import logprob_pass, replayed_logprobs
from engine.train.plan import TrainerSpec
from engine.train.tiny import build_for_run

BATCHES = 20


class Call:
    """A plain object whose methods can be awaited, as an actor's can."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        method = getattr(self._target, name)

        async def call(*args):
            return await asyncio.to_thread(method, *args)

        return call


async def start(tmp_path, config, agent):
    model = build_for_run(config, tmp_path / "model", agent)
    engine = VllmEngine()
    await engine.start(EngineSpec(str(model), max_model_len=config.data.max_len, kv_cache_gb=0.25, enforce_eager=True,
                                  return_routed_experts=True))  # fmt: skip
    trainer = Trainer(get=lambda refs: refs)
    info = trainer.setup(TrainerSpec(config, str(model), total_steps=config.train.max_steps))
    router, runner = Router(), AgentRunnerActor()
    await router.start([engine])
    spec = RunnerSpec(str(agent), str(model), config.data.max_len, vocab_size=info["vocab_size"])
    await runner.start(spec, router, lambda records: records)
    prompts = load_prompts(config.data, seed=1, epochs=9)
    pool = RolloutPool(prompts, RunnerDispatch([runner]), pool_settings(config))
    return engine, trainer, pool


def gaps(trainer, order):
    """k3 of the same tokens with the sampler's experts and with the live ones."""
    sums = {True: {}, False: {}}
    for step in trainer._load(order):
        for batch in step:
            replayed = replayed_logprobs(trainer.policy, batch, trainer.routing)
            live = logprob_pass(trainer.policy, batch.input_ids_BT, batch.mask_BT, batch.temperatures_BT)
            for with_replay, logprobs_BT in ((True, replayed), (False, live)):
                for key, value in gap_sums(logprobs_BT, batch.rollout_logprobs_BT, batch.mask_BT).items():
                    sums[with_replay][key] = sums[with_replay].get(key, 0) + value
    return finish_gap(sums[True])["k3_kl"], finish_gap(sums[False])["k3_kl"]


@pytest.mark.long
async def test_replay_brings_sampler_and_trainer_closer(tmp_path):
    torch.set_num_threads(1)
    recipe, config, problems = load("demo", ["--train.max_staleness", "0", "--tiny.warmup_steps", "100"])
    assert not problems
    agent = recipe.path.parent / "sort_digits" / "agent.py"
    engine, trainer, pool = await start(tmp_path, config, agent)
    try:
        host, port = trainer.free_address()
        await asyncio.gather(Call(trainer).init_transfer(host, port, 2), engine.init_transfer(host, port, 1, 2))
        manifest = trainer.weight_manifest()
        pool.start()
        ratios, mismatches = [], []
        for version in range(BATCHES):
            batch = prepare(await pool.next_batch(), 0, config)
            with_replay, live = gaps(trainer, batch.order)
            ratios.append(with_replay / live)
            report = trainer.train(batch.order)
            mismatches.append(report.metrics["routing/mismatch_frac"])
            assert report.metrics["routing/replayed_mismatch_frac"] == 0
            await publish([Call(trainer)], [engine], manifest, version + 1)
            pool.published(version + 1)
    finally:
        await pool.close()
        await engine.shutdown()
    print("k3 with replay / without:", np.round(ratios, 3), "mean", np.mean(ratios))
    print("routing mismatch before replay:", np.round(mismatches, 4))
    assert np.mean(ratios) <= 0.8
    assert min(mismatches) > 0
