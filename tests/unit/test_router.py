"""Placement, stickiness, and turns that outlive an engine."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.rollout.router import MAX_LEGS, NoEngine, Router
from engine.rollout.transport import GenerateRequest, Sampling
from tests.scripted import EOS, Script, ScriptedEngine, run_virtual, update


def turn(name="e0.0", prompt=4, episode=None, **sampling) -> GenerateRequest:
    return GenerateRequest(name, episode or name, list(range(1, prompt + 1)), Sampling(**sampling))


async def make(*engines) -> Router:
    router = Router()
    await router.start(engines)
    return router


def undisturbed(request, length, routing=None):
    """What one engine of version 0 returns when nothing happens."""
    return run_virtual(ScriptedEngine(Script(lambda _: length), routing=routing).generate(request))


def test_requests_go_to_the_engine_with_the_fewest_tokens():
    async def main():
        script = Script(lambda name: 50)
        engines = [ScriptedEngine(script) for _ in range(3)]
        router = await make(*engines)
        sizes = [5000, 100, 100, 100, 100]
        jobs = [asyncio.ensure_future(router.generate(turn(f"t{i}", n))) for i, n in enumerate(sizes)]
        await asyncio.sleep(0.1)
        assert [len(s.requests) for s in router.slots] == [1, 2, 2]
        assert [s.tokens for s in router.slots] == [5000, 200, 200]
        await asyncio.gather(*jobs)
        assert [(len(s.requests), s.tokens) for s in router.slots] == [(0, 0)] * 3
        assert [len(e.requests) for e in engines] == [1, 2, 2]

    run_virtual(main())


def test_an_episode_returns_to_its_engine_unless_that_is_clearly_fuller():
    async def main():
        engines = [ScriptedEngine(Script(lambda name: 20)) for _ in range(2)]
        router = await make(*engines)
        first = await router.generate(turn("a.0", episode="a"))
        other = asyncio.ensure_future(router.generate(turn("b.0", 3000)))
        await asyncio.sleep(0.01)
        assert (await router.generate(turn("a.1", episode="a"))).engine == first.engine == 0
        await other
        heavy = [asyncio.ensure_future(router.generate(turn("c.0", 6000, episode="a")))]
        await asyncio.sleep(0.01)
        assert (await router.generate(turn("a.2", episode="a"))).engine == 1, "the home engine is 6000 tokens ahead"
        await asyncio.gather(*heavy)

    run_virtual(main())


@given(
    length=st.integers(1, 40),
    faults=st.lists(st.sampled_from(["abort", "crash", "drain"]), max_size=4),
    gaps=st.lists(st.integers(1, 15), min_size=4, max_size=4),
    limit=st.none() | st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_turn_goes_on_elsewhere_with_exact_tokens_versions_and_routing(length, faults, gaps, limit):
    request = turn(max_tokens=limit, seed=3)

    async def main():
        script = Script(lambda _: length)
        engines = [ScriptedEngine(script, routing=(2, 1)) for _ in range(5)]
        router = await make(*engines)
        job = asyncio.ensure_future(router.generate(request))
        borders = []
        for version, (fault, gap) in enumerate(zip(faults, gaps), 1):
            await asyncio.sleep(0.01 * gap + 0.001)
            if job.done():
                break
            index, slot = next((i, s) for i, s in enumerate(router.slots) if s.requests)
            sampled = sum(len(r.tokens) for r in engines[index]._running.values())
            borders.append(0 if fault == "crash" else sampled)
            if fault == "crash":
                engines[index].crash()
            elif fault == "drain":
                await router.drain(index)
            else:
                await engines[index].abort(list(slot.requests.values()))
            await update(engines, version)
        return await job, borders

    result, borders = run_virtual(main())
    expected = undisturbed(request, length, routing=(2, 1))
    assert result.token_ids == expected.token_ids
    assert result.finish_reason == expected.finish_reason
    versions = [v for v, count in enumerate(borders) for _ in range(count)]
    versions += [len(borders)] * (len(result.token_ids) - len(versions))
    assert result.versions == versions
    assert result.logprobs == [-(v + 1) / 64 for v in versions]
    assert result.routed_experts.shape == (4 + len(result.token_ids) - 1, 2, 1)
    last = np.array(versions)[-1]
    assert result.routed_experts[-1, 0, 0] == (4 + len(result.token_ids) - 2 + last) % 8


def test_a_leg_asks_only_for_what_is_missing():
    async def main():
        script = Script(lambda _: 20)
        engines = [ScriptedEngine(script, routing=(1, 1)) for _ in range(2)]
        router = await make(*engines)
        job = asyncio.ensure_future(router.generate(turn(max_tokens=15, seed=1)))
        await asyncio.sleep(0.101)
        await router.drain(0)
        result = await job
        (leg,) = engines[1].requests
        assert (len(leg.token_ids), leg.routed_from, leg.sampling.max_tokens) == (14, 13, 5)
        assert leg.sampling.seed != 1
        assert (len(result.token_ids), result.finish_reason, result.engine) == (15, "length", 1)

    run_virtual(main())


def test_an_abort_by_the_caller_ends_the_turn_with_what_it_has():
    async def main():
        engine = ScriptedEngine(Script(lambda _: 100))
        router = await make(engine)
        job = asyncio.ensure_future(router.generate(turn("x")))
        await asyncio.sleep(0.051)
        await router.abort(["x", "unknown"])
        result = await job
        assert (len(result.token_ids), result.finish_reason) == (5, "abort")
        assert router.slots[0].requests == {} and not router._aborted and not router._active

    run_virtual(main())


def test_without_an_engine_the_error_says_so():
    async def main():
        engines = [ScriptedEngine(fault=lambda request: "crash") for _ in range(2)]
        router = await make(*engines)
        with pytest.raises(NoEngine, match="none of the 2 engines"):
            await router.generate(turn())
        await router.restore(1, ScriptedEngine(Script(lambda _: 2)))
        assert (await router.generate(turn())).token_ids[-1] == EOS

    run_virtual(main())


def test_an_error_of_the_request_is_not_tried_elsewhere():
    async def main():
        engines = [ScriptedEngine(fault=lambda request: "error") for _ in range(2)]
        router = await make(*engines)
        with pytest.raises(ValueError, match="scripted"):
            await router.generate(turn())
        assert [len(e.requests) for e in engines] == [1, 0]
        assert all(s.open and s.tokens == 0 for s in router.slots)

    run_virtual(main())


def test_an_engine_that_aborts_everything_does_not_spin_forever():
    async def main():
        engine = ScriptedEngine(fault=lambda request: "abort")
        router = await make(engine)
        with pytest.raises(NoEngine, match=f"{MAX_LEGS} times"):
            await router.generate(turn())
        assert len(engine.requests) == MAX_LEGS

    run_virtual(main())
