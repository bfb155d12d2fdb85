"""The rollout path over real process borders: actors are killed, turns and groups go on elsewhere."""

import asyncio

import pytest
import ray

from engine.config import Config
from engine.data import PromptStream, Source
from engine.placement import Cluster, Remote
from engine.records import check_rollout
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.mailbox import MailboxClient
from engine.rollout.pool import PoolSettings, RolloutPool
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from tests.scripted import CharTokenizer, Script, ScriptedEngine, update
from tests.unit.test_runner import AGENT

LOST = (ConnectionError, ray.exceptions.RayActorError)


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster(Config())
    cluster.start_ray()
    yield cluster
    asyncio.run(cluster.shutdown())


def spawn(cls, *args, **kwargs) -> Remote:
    return Remote(ray.remote(cls).options(num_cpus=0, max_concurrency=1000).remote(*args, **kwargs))


async def rollout_path(tmp_path, engines=2, runners=2, **engine_options):
    """Engines, router, runners as actors, and a pool of 12 prompts over them."""
    agent = tmp_path / "count_agent.py"
    agent.write_text(AGENT)
    engine_handles = [spawn(ScriptedEngine, Script(lambda turn: 40), routing=(2, 2), **engine_options) for _ in range(engines)]
    router = spawn(Router)
    await router.start([MailboxClient(e) for e in engine_handles], LOST)
    runner_handles = [spawn(AgentRunnerActor) for _ in range(runners)]
    spec = RunnerSpec(str(agent), CharTokenizer(), max_len=200)
    await asyncio.gather(*[r.start(spec, MailboxClient(router), ray.put) for r in runner_handles])
    prompts = PromptStream([Source("p", [(f"{i}+1=", None, {}) for i in range(12)])], (), seed=0, epochs=1)
    settings = PoolSettings(groups_per_batch=3, n_samples=4, max_staleness=1)
    return RolloutPool(prompts, RunnerDispatch(runner_handles, LOST), settings), router, engine_handles, runner_handles


async def train_all(pool, engines):
    """Consume every batch; returns all records after checking them against their summaries."""
    records = []
    while (batch := await pool.next_batch()) is not None:
        for group in batch.groups:
            rollouts = ray.get(group.payload)
            assert [r.sampled for r in rollouts] == [s.sampled for s in group.rollouts]
            records += rollouts
        version = batch.version + 1
        await update(engines, version)
        pool.published(version)
    for record in records:
        check_rollout(record, newest_version=version)
    return records


async def in_flight(router) -> int:
    return sum(slot.requests for slot in await router.stats())


async def test_turns_of_a_killed_engine_go_on_elsewhere(cluster, tmp_path):
    pool, router, engines, _ = await rollout_path(tmp_path)
    pool.start()
    while await in_flight(router) < 8:
        await asyncio.sleep(0.01)
    ray.kill(engines[0]._handle)
    records = await train_all(pool, engines[1:])
    assert len(records) == 48 and {r.error for r in records} == {None}
    assert [slot.open for slot in await router.stats()] == [False, True]


async def test_groups_of_a_killed_runner_run_again_on_another(cluster, tmp_path):
    pool, router, engines, runners = await rollout_path(tmp_path)
    pool.start()
    while await in_flight(router) < 24:
        await asyncio.sleep(0.01)
    ray.kill(runners[0]._handle)
    records = await train_all(pool, engines)
    assert len({r.prompt_id for r in records}) == 12 and len(records) == 48


async def test_closing_the_pool_ends_the_generations(cluster, tmp_path):
    pool, router, _, _ = await rollout_path(tmp_path, step_s=lambda running: 10.0)
    pool.start()
    while await in_flight(router) < 24:
        await asyncio.sleep(0.01)
    await pool.close()
    while await in_flight(router):
        await asyncio.sleep(0.01)
    assert len(pool.state_dict()["pending"]) == 6
