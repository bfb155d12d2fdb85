"""Sends groups to runner processes: the one with the fewest rollouts in flight, never a lost one."""

import asyncio
from collections.abc import Sequence

from engine.errors import one_line
from engine.rollout.background import Background
from engine.rollout.pool import RunFailed
from engine.rollout.runner import AgentRunnerActor
from engine.rollout.transport import ErrorTypes, FinishedGroup, GroupSpec


class NoRunner(RunFailed):
    """Every runner process is lost: no rollout can succeed any more, whatever failure rate is allowed."""


class RunnerHangs(RuntimeError):
    """A runner process did not keep its own time limits; its event loop must be blocked."""


class RunnerDispatch:
    """The pool's `dispatch`. `lost`: exceptions that mean the process is gone; its groups then fail and are retried.
    `limit_s`: a runner that takes longer for a group hangs and counts as lost too; None: no limit."""

    def __init__(
        self, runners: Sequence[AgentRunnerActor], lost: ErrorTypes = (ConnectionError,), limit_s: float | None = None
    ) -> None:
        self._runners, self._lost_errors, self._limit_s = list(runners), (*lost, RunnerHangs), limit_s
        self._rollouts = [0] * len(self._runners)
        self._alive = set(range(len(self._runners)))
        self._last_loss = "there was none"
        self._aborts = Background()

    async def __call__(self, spec: GroupSpec) -> FinishedGroup:
        """Run one group. Raises NoRunner, RunnerHangs, or what the runner's process raised; cancelling aborts it there."""
        if not self._alive:
            raise NoRunner(f"every agent runner process is gone; the last one: {self._last_loss}")
        index = min(self._alive, key=self._rollouts.__getitem__)
        self._rollouts[index] += spec.n_samples
        try:
            return await self._within_limit(index, spec)
        except asyncio.CancelledError:
            # Asked for, not awaited: a cancelled caller has no time, and a lost runner would never answer.
            self._aborts.start(self._runners[index].abort_group(spec.group_id))
            raise
        except self._lost_errors as error:
            self._alive.discard(index)
            self._last_loss = one_line(error)
            raise
        finally:
            self._rollouts[index] -= spec.n_samples

    async def _within_limit(self, index: int, spec: GroupSpec) -> FinishedGroup:
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                return await self._runners[index].run_group(spec)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RunnerHangs(f"agent runner {index} did not answer within {self._limit_s:g} s: its environment blocks the "
                              "event loop; await what takes long, or use asyncio.to_thread") from error  # fmt: skip
