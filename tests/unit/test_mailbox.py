"""Generate calls that travel together: same results, errors and aborts as direct ones."""

import asyncio
import pickle

import pytest

from engine.rollout.mailbox import MailboxClient
from engine.rollout.router import Router
from engine.rollout.transport import EngineDead, GenerateRequest, Sampling
from tests.scripted import Script, ScriptedEngine, run_virtual


class Counted:
    """A host behind a process border that counts calls and can be lost."""

    def __init__(self, host):
        self.host, self.calls, self.lost = host, [], asyncio.Event()

    def __getattr__(self, name):
        async def call(*args):
            self.calls.append(name)
            work = asyncio.ensure_future(getattr(self.host, name)(*pickle.loads(pickle.dumps(args))))
            lost = asyncio.ensure_future(self.lost.wait())
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if self.lost.is_set():
                raise EngineDead("the actor died")
            lost.cancel()
            return pickle.loads(pickle.dumps(await work))

        return call


def turns(count):
    return [GenerateRequest(f"t{i}", f"t{i}", [1, 2, 3], Sampling()) for i in range(count)]


def test_a_burst_travels_in_one_call_each_way():
    async def main():
        host = Counted(ScriptedEngine(Script(lambda turn: 5), routing=(2, 2)))
        client = MailboxClient(host)
        results = await asyncio.gather(*(client.generate(r) for r in turns(50)))
        assert host.calls == ["post", "collect"]
        direct = await ScriptedEngine(Script(lambda turn: 5), routing=(2, 2)).generate(turns(1)[0])
        assert all(r.token_ids == direct.token_ids and r.versions == direct.versions for r in results)
        assert (results[7].routed_experts == direct.routed_experts).all()
        await client.generate(turns(51)[50])
        assert host.calls == ["post", "collect"] * 2, "it stops to collect when nobody waits"

    run_virtual(main())


def test_results_arrive_as_they_are_ready_each_to_its_caller():
    async def main():
        host = Counted(ScriptedEngine(Script(lambda turn: 10 * (1 + int(turn[1:])))))
        client, clock = MailboxClient(host), asyncio.get_running_loop().time

        async def timed(request):
            result = await client.generate(request)
            return len(result.token_ids), round(clock(), 1)

        assert await asyncio.gather(*map(timed, turns(4))) == [(10, 0.1), (20, 0.2), (30, 0.3), (40, 0.4)]

    run_virtual(main())


def test_an_error_reaches_only_its_caller_with_its_type():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("cannot travel")

    class Host(ScriptedEngine):
        async def generate(self, request):
            if request.request_id == "t1":
                raise EngineDead("gone")
            if request.request_id == "t2":
                raise Odd("strange")
            if request.request_id == "t3":
                raise asyncio.CancelledError
            return await super().generate(request)

    async def main():
        client = MailboxClient(Counted(Host()))
        outcomes = await asyncio.gather(*(client.generate(r) for r in turns(5)), return_exceptions=True)
        assert [type(o).__name__ for o in outcomes] == [
            "GenerateResult", "EngineDead", "RuntimeError", "RuntimeError", "GenerateResult"]  # fmt: skip
        assert str(outcomes[2]) == "Odd: strange"

    run_virtual(main())


def test_a_lost_host_fails_everyone_who_waits_and_everyone_who_comes():
    async def main():
        host = Counted(ScriptedEngine(Script(lambda turn: 1000)))
        client = MailboxClient(host)
        jobs = [asyncio.ensure_future(client.generate(r)) for r in turns(3)]
        await asyncio.sleep(1)
        host.lost.set()
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        assert {type(o) for o in outcomes} == {EngineDead}
        with pytest.raises(EngineDead):
            await client.generate(turns(4)[3])

    run_virtual(main())


def test_cancelled_callers_and_aborts():
    async def main():
        engine = ScriptedEngine(Script(lambda turn: 100))
        client = MailboxClient(Counted(engine))
        jobs = [asyncio.ensure_future(client.generate(r)) for r in turns(2)]
        await asyncio.sleep(0.055)
        jobs[0].cancel()
        await client.abort(["t0", "t1"])
        result = await jobs[1]
        assert (result.finish_reason, len(result.token_ids)) == ("abort", 5)
        assert jobs[0].cancelled() and not client._waiting
        assert len((await client.generate(turns(3)[2])).token_ids) == 100

    run_virtual(main())


def test_a_router_behind_and_in_front_of_mailboxes_carries_turns_over():
    async def main():
        script = Script(lambda turn: 20)
        hosts = [Counted(ScriptedEngine(script, routing=(1, 1))) for _ in range(2)]
        router = Router()
        await router.start([MailboxClient(h) for h in hosts])
        client = MailboxClient(Counted(router))
        jobs = [asyncio.ensure_future(client.generate(r)) for r in turns(6)]
        await asyncio.sleep(0.05)
        hosts[0].lost.set()
        results = await asyncio.gather(*jobs)
        assert {len(r.token_ids) for r in results} == {20} and {r.engine for r in results} == {1}
        assert [s.open for s in router.slots] == [False, True]

    run_virtual(main())
