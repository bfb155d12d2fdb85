"""Keeps groups in flight within the staleness bound and hands finished ones to the trainer.

Admission: groups in flight, finished and being trained are at most (max_staleness + 1) x groups_per_batch; a batch frees
its places when its update is published. Finished groups leave oldest admission first. What follows:
- Bound 0 is strictly synchronous: nothing is admitted until the batch's update is published.
- A finished group has fewer than (max_staleness + 1) batches of groups before it, so it is consumed at most max_staleness
  versions after it finished: its last tokens are never over age, and no group waits forever behind quicker ones.
- A batch waits for a straggler that would otherwise become too old, but not longer than the last max_staleness + 1 steps
  took; so long rollouts are trained whole, and one that hangs costs a bounded delay once. What outlives that has early
  tokens over age; the trainer masks those, and a rollout is lost to age only when all its tokens are.
- Every prompt is in exactly one place: the stream, `returned`, in flight, finished, being trained, or done.
"""

import asyncio
from bisect import insort
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from engine.config import Config
from engine.data import PromptStream
from engine.errors import one_line
from engine.rollout.filtering import filtered
from engine.rollout.staleness import must_finish
from engine.rollout.transport import FinishedGroup, GroupSpec, Prompt, Sampling

FAILURE_WINDOW_GROUPS = 64
FAILURE_MIN_ROLLOUTS = 32  # fewer say nothing about a rate, unless the prompts end before
MAX_TOLD = 50


class RunFailed(RuntimeError):
    """The rollouts fail too often to go on, or (raised by `dispatch`) none can succeed; the message says why."""


@dataclass
class Batch:
    """Groups of one training step.

    version   policy version that trains them; staleness of a token = version - its version
    queue     queue/* metrics of the moment when the batch was asked for
    lost      groups without a usable rollout since the last batch: not trained, only counted
    """

    version: int
    groups: list[FinishedGroup]
    queue: dict[str, float]
    lost: list[FinishedGroup] = field(default_factory=list)


@dataclass
class FailureBudget:
    """Share of useless rollouts over the last groups. Every new reason is printed once, for the log."""

    limit: float
    told: set[str] = field(default_factory=set)
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=FAILURE_WINDOW_GROUPS))
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=FAILURE_WINDOW_GROUPS))

    def record(self, group: FinishedGroup) -> None:
        useless = group.failed + sum(group.dropped.values())
        self.recent.append((useless, useless + len(group.rollouts)))
        self.reasons.extend(group.errors or group.dropped)
        for reason in sorted({*group.errors} - self.told)[: max(0, MAX_TOLD - len(self.told))]:
            self.told.add(reason)
            print(f"rollout failed: {reason}", flush=True)

    def verdict(self, final: bool = False) -> str | None:
        """Why the run has to stop, or None. Few rollouts are judged only when no more will come (`final`)."""
        useless, total = (sum(column) for column in zip(*self.recent)) if self.recent else (0, 0)
        if not total or useless / total <= self.limit or (total < FAILURE_MIN_ROLLOUTS and not final):
            return None
        reason = Counter(self.reasons).most_common(1)[0][0] if self.reasons else "no reason was given"
        return (f"{useless} of the last {total} rollouts failed, more than rollout.max_failure_rate {self.limit:g} allows; "
                f"most often: {reason}")  # fmt: skip


class RolloutPool:
    """One per run, on the controller's loop. `dispatch` runs one group somewhere; what it raises costs the prompt a retry.

    max_staleness and sampling start as configured and can change while the pool runs, by `use_knobs`.
    """

    def __init__(self, prompts: PromptStream, dispatch: Callable[[GroupSpec], Awaitable[FinishedGroup]], config: Config) -> None:
        self.prompts, self.config, self.version = prompts, config, 0
        rollout = config.rollout
        self.max_staleness = config.train.max_staleness
        self.sampling = Sampling(rollout.temperature, rollout.top_p, rollout.max_new_tokens)
        self._dispatch = dispatch
        self._returned: deque[Prompt] = deque()
        self._in_flight: dict[str, tuple[GroupSpec, asyncio.Task[None]]] = {}
        self._finished: list[tuple[int, FinishedGroup]] = []  # with their place in the order of admission, sorted by it
        self._training: list[FinishedGroup] = []
        self._lost: list[FinishedGroup] = []
        self._dispatch_failures: Counter[str] = Counter()
        self._failures = FailureBudget(rollout.max_failure_rate)
        self._fatal: str | None = None
        self._admitted = 0
        self._evaluations = 0
        self._started = self._paused = self._draining = self._exhausted = False
        self._changed = asyncio.Event()
        self._taken: deque[float] = deque()  # when the last max_staleness + 1 batches were taken, at first the start

    @property
    def capacity(self) -> int:
        """Groups that may be admitted and not yet published."""
        return (self.max_staleness + 1) * self.config.rollout.batch_size

    @property
    def live(self) -> int:
        """Groups in flight, finished and being trained."""
        return len(self._in_flight) + len(self._finished) + len(self._training)

    def start(self) -> None:
        """Begin to admit groups."""
        self._started = True
        self._taken.append(asyncio.get_running_loop().time())
        self._update()

    async def close(self) -> None:
        """Admit nothing more and cancel what is in flight; its prompts stay part of state_dict."""
        self._started = False
        tasks = [task for _, task in self._in_flight.values()]
        self._returned.extendleft(spec.prompt for spec, _ in reversed(self._in_flight.values()))
        self._in_flight.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next_batch(self) -> Batch | None:
        """The next batch, oldest admissions first; a smaller last one when the prompts run out, then None.

        Raises RunFailed when too many rollouts failed, RuntimeError when the previous batch is not published yet.
        """
        if self._training:
            raise RuntimeError("the previous batch must be published before the next one is taken")
        queue = self.snapshot()
        while not self._ready():
            await self._wait()
        await self._wait_for_stragglers()
        size = min(self.config.rollout.batch_size, len(self._finished))
        if not size:
            return None
        self._training = [group for _, group in self._finished[:size]]
        del self._finished[:size]
        lost, self._lost = self._lost, []
        return Batch(self.version, list(self._training), queue, lost)

    def _ready(self) -> bool:
        """A batch is complete, or no further group can come. Raises RunFailed."""
        ended = self._exhausted and not self._returned and not self._in_flight
        verdict = self._fatal or self._failures.verdict(final=ended)
        if verdict:
            raise RunFailed(verdict)
        return ended or len(self._finished) >= self.config.rollout.batch_size

    async def _wait_for_stragglers(self) -> None:
        """Wait for groups that the next batches could not train in time, at most as long as the last steps took."""
        now = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(now - (self._taken[0] if self._taken else now)):
                while self._ready() and self._has_stragglers():
                    await self._wait()
        self._taken.append(asyncio.get_running_loop().time())
        while len(self._taken) > self.max_staleness + 1:
            self._taken.popleft()

    def _has_stragglers(self) -> bool:
        finished = [group.admitted_version for _, group in self._finished]
        running = [spec.admitted_version for spec, _ in self._in_flight.values()]
        return must_finish(self.version, self.max_staleness, self.config.rollout.batch_size, finished, running)

    async def _wait(self) -> None:
        """Until something happens to a group or to a setting."""
        self._changed.clear()
        await self._changed.wait()

    def published(self, version: int) -> None:
        """The last batch is trained and `version` is what the engines sample now (also when the step was skipped)."""
        self.version = version
        self._training = []
        self._draining = False
        self._update()

    def use_knobs(self, live: dict[str, Any]) -> None:
        """The bound takes effect at once, though groups already admitted above a lower one stay; the temperature is for groups
        admitted from now on."""
        self.max_staleness = live["train.max_staleness"]
        self.sampling = replace(self.sampling, temperature=live["rollout.temperature"])
        self._update()

    def set_paused(self, paused: bool) -> None:
        """While paused nothing is admitted; what is in flight goes on."""
        self._paused = paused
        self._update()

    async def drain(self) -> None:
        """Admit nothing until `published`, and wait until nothing is in flight: no rollout then spans the update."""
        self._draining = True
        while self._in_flight:
            await self._wait()

    def _update(self) -> None:
        """Admit what may be admitted and wake who waits."""
        while self._open() and self.live < self.capacity:
            prompt = self._returned.popleft() if self._returned else self.prompts.next()
            self._exhausted = prompt is None
            if prompt is None:
                break
            self._admit(prompt)
        self._changed.set()

    def _open(self) -> bool:
        return self._started and not (self._paused or self._draining) and not self._fatal and self._failures.verdict() is None

    def _admit(self, prompt: Prompt) -> None:
        sequence = self._admitted
        self._admitted += 1
        group_id, n_samples = f"{prompt.prompt_id}#{sequence}", self.config.rollout.n_samples_per_prompt
        spec = GroupSpec(group_id, prompt, n_samples, self.sampling, self.version)
        self._in_flight[spec.group_id] = (spec, asyncio.ensure_future(self._run(sequence, spec)))

    async def _run(self, sequence: int, spec: GroupSpec) -> None:
        """One group from dispatch to the queue, or its prompt back for another try."""
        prompt_id = spec.prompt.prompt_id
        error: BaseException | None = None
        try:
            group = await self._dispatch(spec)
        except (Exception, asyncio.CancelledError) as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error, group = raised, _failed_group(spec, raised)
            if isinstance(raised, RunFailed):
                self._fatal = str(raised)
        if self._in_flight.pop(spec.group_id, None) is None:
            return  # closed meanwhile: the prompt was returned
        if error is not None and self._dispatch_failures[prompt_id] < self.config.rollout.max_retries:
            self._dispatch_failures[prompt_id] += 1
            self._returned.append(spec.prompt)
        else:
            group.retried += self._dispatch_failures.pop(prompt_id, 0) * spec.n_samples
            self._failures.record(group)
            if self.config.algo.dynamic_filtering_enable:
                group = filtered(group, spec.n_samples, self.config.algo.dynamic_filtering_range)
            if group.rollouts:
                insort(self._finished, (sequence, group), key=itemgetter(0))
            else:
                self._lost.append(group)
        self._update()

    async def run_eval(self, prompts: list[Prompt], sampling: Sampling, n_samples: int) -> list[FinishedGroup]:
        """Run evaluation groups beside the training ones, past admission and budget; a failed dispatch is a failed group."""
        self._evaluations += 1
        return await asyncio.gather(*(self._evaluate(prompt, sampling, n_samples) for prompt in prompts))

    async def _evaluate(self, prompt: Prompt, sampling: Sampling, n_samples: int) -> FinishedGroup:
        group_id = f"eval{self._evaluations}:{prompt.prompt_id}"
        spec = GroupSpec(group_id, prompt, n_samples, sampling, self.version)
        try:
            return await self._dispatch(spec)
        except Exception as error:
            return _failed_group(spec, error)

    def snapshot(self) -> dict[str, float]:
        """queue/* of this moment. In-flight rollouts are all rollouts of the groups in flight."""
        return {
            "queue/depth": len(self._finished),
            "queue/capacity": self.capacity,
            "queue/in_flight_groups": len(self._in_flight),
            "queue/in_flight_rollouts": sum(spec.n_samples for spec, _ in self._in_flight.values()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not trained yet: cursor, prompts to run again, finished groups (see `with_payloads`).

        A batch that was handed out counts as trained only once it is published, so save between `published` and the
        next `next_batch`.
        """
        running = [spec.prompt for spec, _ in self._in_flight.values()]
        return {
            "version": self.version,
            "admitted": self._admitted,
            "cursor": self.prompts.state_dict(),
            "pending": running + list(self._returned),
            "finished": self._training + [group for _, group in self._finished],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Before `start`: pending prompts run first, finished groups are consumed first, the stream goes on after them."""
        self.version, self._admitted = state["version"], state["admitted"]
        self.prompts.load_state_dict(state["cursor"])
        self._returned = deque(state["pending"])
        self._finished = list(enumerate(state["finished"]))


def with_payloads(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of a pool's state with every payload converted: references to records for saving, and back."""
    return state | {"finished": [replace(group, payload=convert(group.payload)) for group in state["finished"]]}


def _failed_group(spec: GroupSpec, error: BaseException) -> FinishedGroup:
    """What stands for a group whose dispatch raised."""
    errors = [one_line(error)]
    return FinishedGroup(spec.group_id, spec.prompt, [], None, spec.admitted_version, failed=spec.n_samples, errors=errors)
