"""One runner process: groups, retries, time-outs, invariants, summaries."""

import asyncio

import pytest

from engine.config import Config
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from engine.rollout.transport import GroupSpec, Prompt, Sampling
from tests.scripted import CharTokenizer, Script, ScriptedEngine, run_virtual, update

AGENT = """
from engine.agents import Env, Result, StepEnvRunner

class Count(Env):
    async def reset(self, state, **kwargs):
        if state["observation"] == "bad":
            raise RuntimeError("no such task")
        return state

    async def step(self, state, **kwargs):
        return Result(reward=float(len(state["action_text"])), info={"chars": len(state["action_text"])})

class AgentRunner(StepEnvRunner):
    def __init__(self):
        super().__init__(Count)
"""


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "count_agent.py"
    path.write_text(AGENT)
    return str(path)


async def make(agent, *engines, vocab_size=None, **rollout):
    """A started runner over a router over these engines; `stored` receives what it puts away."""
    stored = []

    def put(records):
        stored.append(records)
        return len(stored) - 1

    router = Router()
    await router.start(engines)
    runner, config = AgentRunnerActor(), Config(data={"max_len": 200}, rollout=rollout)
    await runner.start(RunnerSpec(agent, CharTokenizer(), config, vocab_size), router, put)
    return runner, stored


def group(prompt="1+2=", n=4, **sampling) -> GroupSpec:
    return GroupSpec("g0", Prompt("p:0@0", prompt), n, Sampling(**sampling), admitted_version=2)


def test_a_group_returns_summaries_and_puts_the_records_away(agent):
    async def main():
        script = Script(lambda turn: 10 + int(turn.split("/")[1][0]))
        engine = ScriptedEngine(script, routing=(2, 2))
        runner, stored = await make(agent, engine)
        job = asyncio.ensure_future(runner.run_group(group(seed=7)))
        await asyncio.sleep(0.0501)
        assert len(runner._router.slots[0].requests) == 4
        await update([engine], 1)
        finished = await job
        assert finished.payload == 0 and finished.admitted_version == 2
        assert [r.sampled for r in finished.rollouts] == [10, 11, 12, 13]
        assert [r.segments[0].version_tokens for r in finished.rollouts] == [{0: 5, 1: n - 5} for n in (10, 11, 12, 13)]
        assert [r.reward for r in finished.rollouts] == [9, 10, 11, 12]
        assert finished.rollouts[0].info == {"chars": 9.0}
        assert [r.rollout_id for r in stored[0]] == ["g0/0", "g0/1", "g0/2", "g0/3"]
        assert (finished.failed, finished.retried, finished.dropped) == (0, 0, {})
        assert len({r.sampling.seed for r in engine.requests}) == 4
        assert not runner._groups

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "label"), [("state", None), ('state | {"label": [4, 2]}', "[4, 2]"), ('{"observation": "?"}', None)]
)
def test_what_an_environment_judges_by_is_kept_where_it_is_not_the_data_s(tmp_path, code, label):
    path = tmp_path / "own_label.py"
    path.write_text(AGENT.replace("        return state\n", f"        return {code}\n"))

    async def main():
        runner, stored = await make(str(path), ScriptedEngine(Script(lambda turn: 3)))
        await runner.run_group(GroupSpec("g0", Prompt("p:0@0", "1+2=", label="3"), 2, Sampling()))
        assert [record.label for record in stored[0]] == [label, label]

    run_virtual(main())


def test_failed_rollouts_are_retried_then_counted_with_their_message(agent):
    async def main():
        engine = ScriptedEngine(fault=lambda request: "error" if "/1~" in request.request_id else None)
        runner, _ = await make(agent, engine, max_retries=2)
        finished = await runner.run_group(group(n=3))
        assert (len(finished.rollouts), finished.failed, finished.retried) == (2, 1, 2)
        assert finished.errors == ["ValueError: scripted error"]
        assert sum("/1~" in r.request_id for r in engine.requests) == 3
        once = ScriptedEngine(fault=lambda request: "error" if "~0." in request.request_id else None)
        runner, _ = await make(agent, once, max_retries=1)
        finished = await runner.run_group(group(n=3))
        assert (len(finished.rollouts), finished.failed, finished.retried, finished.errors) == (3, 0, 3, [])

    run_virtual(main())


def test_an_error_of_the_environment_is_a_failed_rollout_without_records(agent):
    async def main():
        runner, stored = await make(agent, ScriptedEngine(), max_retries=0)
        finished = await runner.run_group(group("bad", n=2))
        assert (finished.rollouts, finished.payload, finished.failed) == ([], None, 2)
        assert finished.errors == ["RuntimeError: no such task"] and stored == []

    run_virtual(main())


@pytest.mark.parametrize("error", ["SystemExit('bye')", "KeyboardInterrupt('bye')"])
def test_an_agent_that_exits_is_a_failed_rollout(tmp_path, error):
    async def main():
        path = tmp_path / "exits.py"
        path.write_text(AGENT.replace("return Result(", f"raise {error}\n        Result("))
        runner, _ = await make(str(path), ScriptedEngine(), max_retries=0)
        finished = await runner.run_group(group(n=2))
        assert (finished.failed, finished.errors) == (2, [f"{error.partition('(')[0]}: bye"])

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "reason", "message"),
    [("nan", "invariant", "no finite behaviour log-prob"), (None, "empty_tokens", "no sampled token")],
)
def test_records_that_break_an_invariant_are_dropped_and_not_retried(agent, fault, reason, message):
    async def main():
        engine = ScriptedEngine(Script(lambda turn: 5 if fault else 0), fault=lambda request: fault)
        runner, _ = await make(agent, engine, max_retries=3)
        finished = await runner.run_group(group(n=2))
        assert (finished.dropped, finished.failed, finished.retried) == ({reason: 2}, 0, 0)
        assert message in finished.errors[0]

    run_virtual(main())


def test_ids_outside_the_vocabulary_break_an_invariant(agent):
    async def main():
        runner, _ = await make(agent, ScriptedEngine(), vocab_size=3)
        assert (await runner.run_group(group(n=1))).dropped == {"invariant": 1}

    run_virtual(main())


def test_an_over_long_prompt_is_dropped_by_name(agent):
    async def main():
        runner, _ = await make(agent, ScriptedEngine())
        finished = await runner.run_group(group("1" * 300, n=2))
        assert finished.dropped == {"prompt_too_long": 2} and "data.max_len 200" in finished.errors[0]

    run_virtual(main())


def test_an_episode_out_of_time_fails_and_its_generation_ends(agent):
    async def main():
        engine = ScriptedEngine(fault=lambda request: "hang")
        runner, _ = await make(agent, engine, timeout_s=5.0, max_retries=1)
        finished = await runner.run_group(group(n=2))
        assert (finished.failed, finished.retried) == (2, 2)
        assert finished.errors == ["the episode took longer than rollout.timeout_s (5 s)"]
        assert asyncio.get_running_loop().time() == pytest.approx(10.0)
        assert runner._router.slots[0].requests == {}

    run_virtual(main())


class RemoteRouter:
    """A router behind a process border: cancelling the caller does not cancel the call."""

    def __init__(self, router):
        self.router, self.calls = router, []

    def generate(self, request):
        call = asyncio.ensure_future(self.router.generate(request))
        self.calls.append(call)
        return asyncio.shield(call)

    def abort(self, request_ids):
        return self.router.abort(request_ids)


def test_aborting_a_group_ends_its_generations_behind_a_process_border(agent):
    async def main():
        engine = ScriptedEngine(Script(lambda turn: 1000))
        runner, stored = await make(agent, engine)
        runner._router = remote = RemoteRouter(runner._router)
        job = asyncio.ensure_future(runner.run_group(group(n=3)))
        await asyncio.sleep(1)
        await runner.abort_group("g0")
        await runner.abort_group("unknown")
        finished = await job
        assert finished.dropped == {"aborted": 3} and finished.payload is None and stored == []
        results = await asyncio.gather(*remote.calls)
        assert {r.finish_reason for r in results} == {"abort"}
        assert sorted(engine.aborts) == ["g0/0~0.0", "g0/1~0.0", "g0/2~0.0"]

    run_virtual(main())


def test_cancelling_the_call_itself_is_a_cancellation(agent):
    async def main():
        runner, _ = await make(agent, ScriptedEngine(Script(lambda turn: 1000)))
        job = asyncio.ensure_future(runner.run_group(group(n=1)))
        await asyncio.sleep(1)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert not runner._groups

    run_virtual(main())
