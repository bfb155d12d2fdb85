"""Admission, order, staleness, failure budget, exactly-once ledger of the rollout pool."""

import asyncio
import pickle
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands import live_knobs
from engine.config import Config
from engine.data import PromptStream, Source
from engine.rollout.dispatch import NoRunner, RunnerDispatch, RunnerHangs
from engine.rollout.pool import FailureBudget, RolloutPool, RunFailed, with_payloads
from engine.rollout.transport import FinishedGroup, GroupSpec, RolloutSummary, Sampling, SegmentSummary
from tests.scripted import run_virtual


def stream(size=40, epochs=1, seed=1) -> PromptStream:
    return PromptStream([Source("p", [(str(i), None, {}) for i in range(size)])], (), seed, epochs)


class Sampler:
    """Stands for runners and engines: one token per unit of time, stamped with the version of that time.

    `outcome(spec)` is None, "fail" (all rollouts failed), "raise" or "cancel"."""

    def __init__(self, duration=lambda spec: 5.0, outcome=lambda spec: None):
        self.duration, self.outcome = duration, outcome
        self.version = 0
        self.running: dict[str, Counter[int]] = {}
        self.dispatched: list[str] = []
        self.clock = asyncio.get_running_loop().time

    def publish(self, version: int) -> None:
        self.version = version

    async def __call__(self, spec) -> FinishedGroup:
        self.dispatched.append(spec.prompt.prompt_id)
        tokens = self.running[spec.group_id] = Counter()
        try:
            left = self.duration(spec)
            while left > 0:
                await asyncio.sleep(min(1.0, left))
                left -= 1.0
                tokens[self.version] += 1
        finally:
            del self.running[spec.group_id]
        outcome = self.outcome(spec)
        if outcome == "raise":
            raise ConnectionError("runner lost")
        if outcome == "cancel":
            raise asyncio.CancelledError
        if outcome == "fail":
            return FinishedGroup(spec.group_id, spec.prompt, [], None, failed=spec.n_samples, errors=["broken task"])
        summary = SegmentSummary(10, sum(tokens.values()), dict(tokens))
        rollouts = [RolloutSummary(f"{spec.group_id}/{i}", 1.0, 1.0, 1, False, [summary]) for i in range(spec.n_samples)]
        return FinishedGroup(spec.group_id, spec.prompt, rollouts, spec.group_id, spec.admitted_version)


def pool_of(sampler, prompts=None, *, batch=4, n=2, staleness=1, **options) -> RolloutPool:
    config = Config(rollout={"batch_size": batch, "n_samples_per_prompt": n} | options, train={"max_staleness": staleness})
    return RolloutPool(prompts or stream(), sampler, config)


def ages(batch) -> list[int]:
    """Staleness of every token of the batch, before masking."""
    return [batch.version - v for g in batch.groups for r in g.rollouts for s in r.segments for v in s.version_tokens]


async def train(pool, sampler, steps=None, seconds=3.0, check=lambda: None):
    """The controller's loop; returns the batches."""
    batches = []
    while steps is None or len(batches) < steps:
        batch = await pool.next_batch()
        if batch is None:
            break
        batches.append(batch)
        check()
        await asyncio.sleep(seconds)
        check()
        sampler.publish(batch.version + 1)
        pool.published(batch.version + 1)
        check()
    return batches


def test_batches_arrive_full_and_the_last_smaller_one_is_trained():
    async def main():
        sampler = Sampler()
        pool = pool_of(sampler, stream(10))
        pool.start()
        batches = await train(pool, sampler)
        assert [len(b.groups) for b in batches] == [4, 4, 2]
        assert [b.version for b in batches] == [0, 1, 2]
        assert await pool.next_batch() is None
        assert sorted(g.prompt.prompt_id for b in batches for g in b.groups) == sorted(f"p:{i}@0" for i in range(10))

    run_virtual(main())


def test_groups_stay_in_flight_across_updates_within_the_bound():
    async def main():
        sampler = Sampler(duration=lambda spec: 7.0)
        pool = pool_of(sampler, staleness=2)
        pool.start()
        assert pool.snapshot() == {"queue/depth": 0, "queue/capacity": 12, "queue/in_flight_groups": 12,
                                   "queue/in_flight_rollouts": 24}  # fmt: skip
        first = await pool.next_batch()
        assert first.queue["queue/depth"] == 0
        assert pool.snapshot()["queue/depth"] == 8 and not sampler.running, "all places are taken until the publication"
        pool.published(1)
        assert len(sampler.running) == 0 and pool.snapshot()["queue/in_flight_groups"] == 4
        await asyncio.sleep(1.5)
        sampler.publish(1)
        second = await pool.next_batch()
        assert second.queue["queue/depth"] == 8
        pool.published(2)
        third = await pool.next_batch()
        pool.published(3)
        fourth = await pool.next_batch()
        assert {v for g in fourth.groups for v in g.rollouts[0].segments[0].version_tokens} == {0, 1}
        assert max(ages(third)) == 2

    run_virtual(main())


def test_bound_zero_is_strictly_synchronous():
    async def main():
        sampler = Sampler(duration=lambda spec: 1.0 + int(spec.prompt.prompt) % 7)
        pool = pool_of(sampler, staleness=0)
        pool.start()
        for step in range(5):
            batch = await pool.next_batch()
            assert not sampler.running and pool.snapshot()["queue/in_flight_groups"] == 0
            await asyncio.sleep(2)
            assert not sampler.running, "nothing runs while the batch is trained"
            sampler.publish(step + 1)
            pool.published(step + 1)
            assert set(ages(batch)) == {0}

    run_virtual(main())


def test_a_straggler_is_waited_for_rather_than_trained_too_old():
    async def main():
        sampler = Sampler(duration=lambda spec: 8.0 if spec.prompt.prompt_id == "p:7@0" else 2.0)
        pool = pool_of(sampler, staleness=1)
        pool.start()
        batches = await train(pool, sampler)
        assert max(age for b in batches for age in ages(b)) == 1
        place, straggler = next((b, g) for b in batches for g in b.groups if g.prompt.prompt_id == "p:7@0")
        assert sum(straggler.rollouts[0].segments[0].version_tokens.values()) == 8
        assert place.version == straggler.admitted_version + 1

    run_virtual(main())


def test_a_group_that_hangs_delays_one_batch_by_the_time_it_had_been_running():
    async def main():
        sampler = Sampler(duration=lambda spec: 500.0 if spec.prompt.prompt_id == "p:7@0" else 2.0)
        pool = pool_of(sampler, staleness=1)
        pool.start()
        clock = asyncio.get_running_loop().time
        times, began = [], clock()
        while len(times) < 9:
            batch = await pool.next_batch()
            times.append(clock() - began)
            await asyncio.sleep(3)
            sampler.publish(batch.version + 1)
            pool.published(batch.version + 1)
            began = clock()
        assert sum(t > 3 for t in times) == 1 and max(times) <= 10
        last = [b.groups for b in await train(pool, sampler)][-1]
        late = last[0].rollouts[0].segments[0].version_tokens
        assert sum(late.values()) == 500 and max(late) >= pool.version - 2, "its newest tokens are still trained"

    run_virtual(main())


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_ordinary_long_tails_never_come_too_old(staleness):
    async def main():
        chance = random.Random(staleness)
        sampler = Sampler(duration=lambda spec: min(12.0, chance.lognormvariate(1.0, 0.9)))
        pool = pool_of(sampler, stream(200), staleness=staleness)
        pool.start()
        batches = await train(pool, sampler, seconds=6.0 / staleness)
        assert max(age for b in batches for age in ages(b)) == staleness
        assert sum(len(b.groups) for b in batches) == 200

    run_virtual(main())


def test_the_previous_batch_must_be_published_first():
    async def main():
        pool = pool_of(Sampler())
        pool.start()
        await pool.next_batch()
        with pytest.raises(RuntimeError, match="published"):
            await pool.next_batch()

    run_virtual(main())


def test_a_pause_holds_admission_and_lets_the_rest_finish():
    async def main():
        sampler = Sampler(duration=lambda spec: 4.0)
        pool = pool_of(sampler, staleness=1)
        pool.start()
        pool.set_paused(True)
        await pool.next_batch()
        pool.published(1)
        await asyncio.sleep(9)
        assert not sampler.running and pool.snapshot()["queue/depth"] == 4
        pool.set_paused(False)
        assert pool.snapshot()["queue/in_flight_groups"] == 4

    run_virtual(main())


def test_drain_ends_every_rollout_before_the_update():
    async def main():
        sampler = Sampler(duration=lambda spec: 1.0 + int(spec.prompt.prompt) % 9)
        pool = pool_of(sampler, staleness=2)
        pool.start()
        spanning = 0
        for step in range(8):
            batch = await pool.next_batch()
            await asyncio.sleep(1)
            await pool.drain()
            assert not sampler.running
            sampler.publish(step + 1)
            pool.published(step + 1)
            spanning += sum(len(g.rollouts[0].segments[0].version_tokens) > 1 for g in batch.groups)
            assert max(ages(batch)) <= 2
        assert spanning == 0

    run_virtual(main())


def test_the_bound_can_change_while_the_pool_runs():
    async def main():
        sampler = Sampler()
        pool = pool_of(sampler, staleness=0)
        knobs = live_knobs(pool.config)
        pool.start()
        pool.use_knobs(knobs | {"train.max_staleness": 2})
        assert pool.snapshot()["queue/in_flight_groups"] == 12
        pool.use_knobs(knobs | {"train.max_staleness": 0})
        batches = await train(pool, sampler, steps=5)
        assert [len(set(ages(b))) for b in batches[3:]] == [1, 1] and set(ages(batches[4])) == {0}
        pool.use_knobs(knobs | {"rollout.temperature": 0.3})
        assert pool.sampling.temperature == 0.3

    run_virtual(main())


def test_a_group_without_a_usable_rollout_is_counted_and_replaced():
    async def main():
        sampler = Sampler(outcome=lambda spec: "fail" if int(spec.prompt.prompt) % 5 == 0 else None)
        pool = pool_of(sampler)
        pool.start()
        batches = await train(pool, sampler)
        assert [len(b.groups) for b in batches] == [4] * 8
        lost = [g for b in batches for g in b.lost] + pool._lost
        assert sorted(int(g.prompt.prompt) for g in lost) == [0, 5, 10, 15, 20, 25, 30, 35]
        assert sum(g.failed for g in lost) == 16

    run_virtual(main())


def test_too_many_failures_stop_the_run_with_the_commonest_reason():
    async def main():
        sampler = Sampler(outcome=lambda spec: "fail")
        pool = pool_of(sampler, stream(5000), batch=8, n=4)
        pool.start()
        with pytest.raises(RunFailed, match=r"64 of the last 64 .* rollout.max_failure_rate 0.5 .*: broken task"):
            await pool.next_batch()
        assert len(sampler.dispatched) <= 32, "a broken task does not use up the prompts"
        few = pool_of(Sampler(outcome=lambda spec: "fail"), stream(3))
        few.start()
        with pytest.raises(RunFailed, match="6 of the last 6"):
            await few.next_batch()

    run_virtual(main())


@pytest.mark.parametrize("how", ["raise", "cancel"])
def test_a_lost_runner_costs_a_retry_not_the_prompt(how):
    async def main():
        first = set()

        def outcome(spec):
            again = spec.prompt.prompt_id in first
            first.add(spec.prompt.prompt_id)
            return None if again else how

        sampler = Sampler(outcome=outcome)
        pool = pool_of(sampler, stream(12))
        pool.start()
        batches = await train(pool, sampler)
        trained = [g for b in batches for g in b.groups]
        assert len(trained) == 12 and {g.retried for g in trained} == {2}
        assert not pool._dispatch_failures

    run_virtual(main())


def test_evaluation_runs_beside_training_past_admission():
    async def main():
        sampler = Sampler(
            outcome=lambda spec: "raise" if spec.group_id.startswith("eval") and spec.prompt.prompt == "3" else None
        )
        pool = pool_of(sampler, staleness=0)
        pool.start()
        groups = await pool.run_eval(list(iter(stream(9).next, None)), Sampling(temperature=0.0), 1)
        assert len(sampler.dispatched) == 13
        assert [len(g.rollouts) for g in groups] == [int(g.prompt.prompt != "3") for g in groups]
        (failed,) = (g for g in groups if g.failed)
        assert failed.errors == ["ConnectionError: runner lost"]
        batches = await train(pool, sampler)
        assert len({g.prompt.prompt_id for b in batches for g in b.groups}) == 40

    run_virtual(main())


@st.composite
def scenes(draw):
    return dict(
        seed=draw(st.integers(0, 10_000)),
        size=draw(st.integers(1, 60)),
        epochs=draw(st.integers(1, 2)),
        batch=draw(st.integers(1, 5)),
        staleness=draw(st.integers(0, 3)),
        failing=draw(st.sampled_from([0.0, 0.3])),
        raising=draw(st.sampled_from([0.0, 0.3])),
        drain=draw(st.booleans()),
        cuts=draw(st.lists(st.integers(0, 12), max_size=3)),
    )


@given(scenes())
@settings(max_examples=80, deadline=None)
def test_no_prompt_is_lost_or_doubled_and_no_trained_token_is_over_age(scene):
    """Random durations, failures, lost runners and restarts from a saved state."""

    async def main():
        chance = random.Random(scene["seed"])
        trained: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        state, version, cuts = None, 0, list(scene["cuts"])

        def outcome(spec):
            draw = chance.random()
            return "fail" if draw < scene["failing"] else "raise" if draw < scene["failing"] + scene["raising"] else None

        while True:
            sampler = Sampler(lambda spec: min(40.0, chance.lognormvariate(1.5, 0.9)), outcome)
            pool = pool_of(sampler, stream(scene["size"], scene["epochs"]), batch=scene["batch"],
                           staleness=scene["staleness"], max_failure_rate=1.0)  # fmt: skip
            if state is not None:
                pool.load_state_dict(pickle.loads(state))
                assert pool.version == version
            sampler.publish(version)
            pool.start()
            cut = cuts.pop() if cuts else 10_000
            for _ in range(cut):
                batch = await pool.next_batch()
                assert pool.live <= pool.capacity == (scene["staleness"] + 1) * scene["batch"]
                if batch is None:
                    lost.update(g.prompt.prompt_id for g in pool._lost)
                    check_ledger(trained, lost, scene)
                    return
                check_ages(batch, scene["staleness"])
                trained.update(g.prompt.prompt_id for g in batch.groups)
                lost.update(g.prompt.prompt_id for g in batch.lost)
                await asyncio.sleep(chance.choice([0.0, 1.0, 6.0]))
                assert pool.live <= pool.capacity
                if scene["drain"]:
                    await pool.drain()
                version = batch.version + 1
                sampler.publish(version)
                pool.published(version)
                assert pool.live <= pool.capacity
            await asyncio.sleep(chance.choice([0.0, 2.5]))
            if chance.random() < 0.5:
                await pool.close()
            lost.update(g.prompt.prompt_id for g in pool._lost)
            state = pickle.dumps(pool.state_dict())
            await pool.close()

    run_virtual(main())


def check_ages(batch, bound):
    """After masking nothing is over age; and the newest token of every group is young enough, so no group is wasted."""
    for group in batch.groups:
        newest = max(v for r in group.rollouts for s in r.segments for v in s.version_tokens)
        assert batch.version - newest <= bound
    if bound == 0:
        assert set(ages(batch)) == {0}


def check_ledger(trained, lost, scene):
    """Every prompt id of every epoch was trained once, or lost once and counted."""
    ids = {f"p:{i}@{e}" for i in range(scene["size"]) for e in range(scene["epochs"])}
    assert set(trained) | set(lost) == ids
    assert not set(trained) & set(lost)
    assert all(n == 1 for n in (trained + lost).values())


def test_a_saved_state_runs_its_prompts_first_and_keeps_finished_groups():
    async def main():
        sampler = Sampler(duration=lambda spec: 2.0 if int(spec.prompt.prompt) % 2 else 50.0)
        pool = pool_of(sampler, staleness=1)
        pool.start()
        await asyncio.sleep(3)
        before = pool.state_dict()
        await pool.close()
        after = pool.state_dict()
        assert before["pending"] == after["pending"] and before["finished"] == after["finished"]
        assert len(before["pending"]) + len(before["finished"]) == before["admitted"] == 8 and before["finished"]

        resumed = pool_of(sampler, staleness=1)
        saved = with_payloads(before, lambda payload: [payload])
        assert [g.payload for g in saved["finished"]] == [[g.group_id] for g in before["finished"]]
        resumed.load_state_dict(with_payloads(saved, lambda payload: payload[0]))
        sampler.dispatched.clear()
        resumed.start()
        await asyncio.sleep(0.5)
        assert sampler.dispatched == [p.prompt_id for p in before["pending"]]
        batch = await resumed.next_batch()
        kept = {g.group_id for g in before["finished"]}
        assert kept <= {g.group_id for g in batch.groups} or len(kept) >= 4
        assert len({g.group_id for g in batch.groups}) == 4

    run_virtual(main())


class Runner:
    def __init__(self, error=None, seconds=1.0):
        self.error, self.seconds, self.groups, self.aborted = error, seconds, [], []

    async def run_group(self, spec):
        self.groups.append(spec.group_id)
        await asyncio.sleep(self.seconds)
        if self.error:
            raise self.error
        return FinishedGroup(spec.group_id, spec.prompt, [], None)

    async def abort_group(self, group_id):
        self.aborted.append(group_id)


def test_dispatch_balances_skips_lost_runners_and_aborts_on_cancellation():
    async def main():
        runners = [Runner(), Runner(ConnectionError("gone")), Runner(seconds=9.0)]
        dispatch = RunnerDispatch(runners)
        pool = pool_of(dispatch, stream(9), batch=6, staleness=0, n=1, max_failure_rate=1.0)
        pool.start()
        await asyncio.sleep(0.5)
        assert [len(r.groups) for r in runners] == [2, 2, 2]
        await asyncio.sleep(1.1)
        assert len(runners[1].groups) == 2, "a lost runner gets nothing more"
        slow = list(runners[2].groups)
        await pool.close()
        await asyncio.sleep(0)
        assert set(slow) <= set(runners[2].aborted)
        with pytest.raises(NoRunner):
            await RunnerDispatch([])(None)

    run_virtual(main())


def test_a_runner_that_hangs_is_lost_and_without_another_one_the_run_fails_by_name():
    async def main():
        dispatch = RunnerDispatch([Runner(seconds=1e9)], limit_s=20.0)
        pool = pool_of(dispatch, stream(3), batch=3, staleness=0, n=1, max_failure_rate=1.0)
        pool.start()
        why = "every agent runner process is gone; the last one: RunnerHangs: agent runner 0 did not answer within 20 s"
        with pytest.raises(RunFailed, match=why):
            await asyncio.wait_for(pool.next_batch(), 100)
        with pytest.raises(NoRunner):
            await dispatch(None)

    run_virtual(main())


def test_a_hanging_runner_is_named():
    async def main():
        spec = GroupSpec("g", stream().next(), 1, Sampling(), 0)
        with pytest.raises(RunnerHangs, match="agent runner 0 did not answer within 20 s: its environment blocks"):
            await RunnerDispatch([Runner(seconds=1e9)], limit_s=20.0)(spec)

    run_virtual(main())


def test_every_new_reason_of_a_failure_is_printed_once(capsys):
    budget = FailureBudget(0.5)
    for reason in ("ConnectionError: refused", "ConnectionError: refused", "TimeoutError: no answer"):
        budget.record(FinishedGroup("g", None, [], None, 0, failed=1, errors=[reason]))
    assert capsys.readouterr().out == "rollout failed: ConnectionError: refused\nrollout failed: TimeoutError: no answer\n"
