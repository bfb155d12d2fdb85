"""The rollout path over real process borders: actors are killed, turns and groups go on elsewhere."""

import asyncio
from dataclasses import dataclass

import pytest
import ray

from engine.config import Config
from engine.data import PromptStream, Source
from engine.placement import Cluster, Remote
from engine.records import Rollout, check_rollout
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.mailbox import MailboxClient
from engine.rollout.pool import RolloutPool
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from tests.scripted import CharTokenizer, Script, ScriptedEngine, WatchedRouter, update
from tests.unit.test_runner import AGENT

LOST = (ConnectionError, ray.exceptions.RayActorError)
CONFIG = Config(data={"max_len": 200}, rollout={"batch_size": 3, "n_samples_per_prompt": 4})


@dataclass
class Path:
    """The actors of one rollout path."""

    router: Remote
    engines: list[Remote]
    runners: list[Remote]

    def pool(self, source: str) -> RolloutPool:
        """`source`: part of the ids of its groups; the runners of a test may still be ending those of the one before."""
        prompts = PromptStream([Source(source, [(f"{i}+1=", None, {}) for i in range(12)])], (), seed=0, epochs=1)
        return RolloutPool(prompts, RunnerDispatch(self.runners, LOST), CONFIG)

    async def in_flight(self) -> int:
        return sum(requests for _, requests in await self.router.look())

    async def until_in_flight(self, count: int) -> None:
        while await self.in_flight() != count:
            await asyncio.sleep(0.01)

    async def fill(self, pool: RolloutPool, count: int) -> None:
        """Start the pool and come back while `count` requests are in flight and half-way."""
        await asyncio.gather(*[engine.pause() for engine in self.engines])  # on a busy machine the first would be done before
        pool.start()
        await self.until_in_flight(count)
        before = [(await engine.stats()).tokens for engine in self.engines]
        await asyncio.gather(*[engine.resume() for engine in self.engines])
        for engine, tokens in zip(self.engines, before):
            while (await engine.stats()).tokens == tokens:
                await asyncio.sleep(0.01)


def spawn(cls, *args, **kwargs) -> Remote:
    return Remote(ray.remote(cls).options(num_cpus=0, max_concurrency=1000).remote(*args, **kwargs))


async def make_path(folder) -> Path:
    (folder / "count_agent.py").write_text(AGENT)
    path = Path(spawn(WatchedRouter), [spawn(ScriptedEngine, Script(lambda turn: 40), routing=(2, 2), step_s=lambda running: 0.05)
                                for _ in range(2)], [spawn(AgentRunnerActor) for _ in range(2)])  # fmt: skip
    await path.router.start([MailboxClient(e) for e in path.engines], LOST)
    spec = RunnerSpec(str(folder / "count_agent.py"), CharTokenizer(), CONFIG)
    await asyncio.gather(*[r.start(spec, MailboxClient(path.router), ray.put) for r in path.runners])
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    cluster = Cluster(Config())
    cluster.start_ray()
    yield asyncio.run(make_path(tmp_path_factory.mktemp("agent")))
    asyncio.run(cluster.shutdown())


async def train_all(pool, engines) -> list[Rollout]:
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


async def test_closing_the_pool_ends_the_generations(path):
    pool = path.pool("closed")
    await path.fill(pool, 24)
    await pool.close()
    await path.until_in_flight(0)
    assert len(pool.state_dict()["pending"]) == 6


async def test_a_killed_engine_and_a_killed_runner_cost_no_rollout(path):
    pool = path.pool("killed")
    await path.fill(pool, 24)
    ray.kill(path.engines[0]._handle)
    ray.kill(path.runners[0]._handle)
    records = await train_all(pool, path.engines[1:])
    assert len({r.prompt_id for r in records}) == 12 and len(records) == 48
    assert {r.sampled for r in records} == {40}
    assert [is_open for is_open, _ in await path.router.look()] == [False, True]
