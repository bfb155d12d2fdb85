"""The one async loop of a run: take a batch, train on it, publish the weights, report; commands at safe points."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from engine import report
from engine.batch import PreparedBatch, prepare, set_advantages
from engine.commands import BadCommand, Inbox, changed_knobs
from engine.config import Config
from engine.evaluate import Evaluator
from engine.placement import Cluster
from engine.protocol import AlertEvent, CheckpointEvent, ControlCommand, EventWriter, MetricsEvent, PhaseEvent, SyncEvent
from engine.rollout.pool import Batch, RolloutPool
from engine.sync.publish import PublishReport, publish
from engine.timers import StepTimer
from engine.traces import TraceWriter
from engine.train.plan import TrainReport


class Stopped(Exception):
    """The run was asked to stop; everything is saved."""


@dataclass
class Position:
    """Where the run stands. `step` counts consumed batches, `version` completed publications."""

    step: int = 0
    version: int = 0


@dataclass
class Controller:
    config: Config
    cluster: Cluster
    pool: RolloutPool
    events: EventWriter
    inbox: Inbox
    evaluator: Evaluator
    traces: TraceWriter
    progress: report.Progress
    checkpoints: Any
    manifest: Any
    probe: report.Probe
    live: dict[str, Any]
    position: Position = field(default_factory=Position)
    stop_at: int | None = None
    paused: bool = False
    timer: StepTimer = field(default_factory=StepTimer)
    alerted: set[str] = field(default_factory=set)  # rules that the last batch broke: one that lasts is told once
    evaluation: asyncio.Task[str] | None = None  # the one that runs beside training
    scored_step: int | None = None  # of the last finished evaluation

    async def run(self) -> None:
        """Train until the steps or the prompts are used up. Raises Stopped after a stop command."""
        watcher = asyncio.create_task(self.inbox.watch())
        try:
            self._phase("running")
            if self.config.eval.eval_only:
                await self._evaluate()
                return
            if self.config.eval.eval_at_start and self.position.step == 0:
                await self._evaluate()
            # From here on, so that the first step has rates too.
            await self.progress.engine_metrics(self.cluster)
            self.pool.start()
            self.timer = StepTimer()
            while not self._finished() and await self._step():
                await self._after_step()
            await self._evaluated()
            if self.config.eval.eval_at_end and self.scored_step != self.position.step:
                await self._evaluate()
            if not self.config.ckpt.disable_final_save:
                await self._checkpoint("end")
        finally:
            watcher.cancel()
            if self.evaluation is not None:
                self.evaluation.cancel()
            await self.pool.close()

    def _finished(self) -> bool:
        limit = self.config.train.max_steps
        return limit is not None and self.position.step >= limit

    async def _step(self) -> bool:
        """One batch through training, publication and reporting; False when the prompts are used up."""
        taken = await self._next_batch()
        if taken is None:
            return False
        await self._hand_over_gpus()
        with self.timer.phase("prepare"):
            batch = await asyncio.to_thread(prepare, taken, self.live["train.max_staleness"], self.config)
            batch.order.live = self.live
        if self.config.measures_first:
            with self.timer.phase("measure"):
                parts = await asyncio.gather(*[t.measure(batch.order) for t in self.cluster.trainers])
                measured = {sample: found for part in parts for sample, found in part.items()}
                await asyncio.to_thread(set_advantages, batch, measured, self.config)
        reports = await self._train(batch)
        sync = await self._publish() if reports[0].stepped else await self._keep_version()
        gap = await self._probe() if sync else {}
        self.position.step += 1
        await self._report(taken, batch, reports, sync, gap)
        return True

    async def _next_batch(self) -> Batch | None:
        """Wait for a batch and serve commands meanwhile: the trainer is idle, so this is a safe point."""
        waiting = asyncio.create_task(self.pool.next_batch())
        try:
            while True:
                arrived = asyncio.create_task(self.inbox.arrived.wait())
                with self.timer.phase("wait_batch"):
                    await asyncio.wait({waiting, arrived}, return_when=asyncio.FIRST_COMPLETED)
                arrived.cancel()
                if self.inbox.pending:
                    await self._serve_commands()
                elif waiting.done():
                    return waiting.result()
        finally:
            waiting.cancel()

    async def _train(self, batch: PreparedBatch) -> list[TrainReport]:
        started = time.perf_counter()
        reports = await asyncio.gather(*[t.train(batch.order) for t in self.cluster.trainers])
        wall = time.perf_counter() - started
        optim = reports[0].seconds.get("optim", 0.0)
        self.timer.add("optim", optim)
        self.timer.add("forward_backward", wall - optim)
        return reports

    async def _publish(self) -> PublishReport:
        await self._evaluated()
        if not self.config.train.partial_rollout_enable:
            with self.timer.phase("drain"):
                await self.pool.drain()
        with self.timer.phase("weight_sync"):
            version = self.position.version + 1
            sync = await publish(self.cluster.trainers, self.cluster.engines, self.manifest, version)
        self.position.version = version
        self.pool.published(version)
        self.events.emit(SyncEvent, step=self.position.step, version=version, bytes=sync.bytes, seconds=sync.seconds,
                         pause_seconds=sync.pause_seconds, held=sync.held)  # fmt: skip
        return sync

    async def _hand_over_gpus(self) -> None:
        """Colocated: the engines hold their requests and sleep until the publication."""
        if self.config.placement.colocate:
            with self.timer.phase("sleep"):
                await asyncio.gather(*[e.sleep() for e in self.cluster.engines])

    async def _keep_version(self) -> None:
        """A batch without a token to train changes no weights: nothing is published and the version stays."""
        if self.config.placement.colocate:
            await asyncio.gather(*[e.resume() for e in self.cluster.engines])
        self.pool.published(self.position.version)

    async def _probe(self) -> dict[str, float]:
        if not self.probe.due(self.position.version):
            return {}
        with self.timer.phase("probe"):
            return await self.probe.measure(self.cluster)

    async def _report(
        self, taken: Batch, batch: PreparedBatch, reports: list[TrainReport], sync: PublishReport | None, gap: dict[str, float]
    ) -> None:
        step, version = self.position.step, self.position.version
        with self.timer.phase("report"):
            engines = await self.progress.engine_metrics(self.cluster)
            await self.traces.write(step, batch, reports)
        metrics = report.step_metrics(batch, reports[0], sync, engines, self.timer)
        metrics |= {f"mismatch/{k}": v for k, v in gap.items()}
        prompts = [g.prompt.prompt_id for g in taken.groups]
        lost = [g.prompt.prompt_id for g in taken.lost] or None
        self.events.emit(MetricsEvent, step=step, version=version, metrics=metrics, prompts=prompts, lost=lost)
        found = report.alerts(batch.rewards, metrics, self.config)
        for rule in found.keys() - self.alerted:
            self.events.emit(AlertEvent, step=step, version=version, rule=rule, message=found[rule])
        self.alerted = set(found)
        self.progress.update(step=step, version=version)
        self.timer = StepTimer()

    async def _after_step(self) -> None:
        step = self.position.step
        if self.config.ckpt.save_steps > 0 and step % self.config.ckpt.save_steps == 0:
            await self._checkpoint("interval")
        if self.config.eval.steps > 0 and step % self.config.eval.steps == 0:
            self.evaluation = asyncio.create_task(self._evaluate_version(step, self.position.version))
            if self.config.ckpt.best_metric_key:
                await self._evaluated()  # before the weights change: the best are saved
        await self._serve_commands()
        if self.stop_at is not None and step >= self.stop_at:
            await self._checkpoint("stop")
            raise Stopped("stopped after the step, as asked")

    async def _evaluate(self) -> str:
        """Evaluate at the current version while training waits; returns the scores in words."""
        await self._evaluated()
        self.evaluation = asyncio.create_task(self._evaluate_version(self.position.step, self.position.version))
        return await self._evaluated()

    async def _evaluated(self) -> str:
        """Wait for the evaluation that is under way, if one is. Until then nothing is published: it keeps to its version."""
        running, self.evaluation = self.evaluation, None
        if running is None:
            return ""
        with self.timer.phase("eval"):
            return await running

    async def _evaluate_version(self, step: int, version: int) -> str:
        metrics = await self.evaluator.run(self.pool, version)
        self.events.emit(MetricsEvent, step=step, version=version, metrics=metrics)
        self.scored_step = step
        best = self.config.ckpt.best_metric_key
        if best in metrics:
            await self._keep_best(metrics[best])
        scores = ", ".join(f"{k} {v:.3f}" for k, v in metrics.items() if k.endswith(("score_mean", "exact_frac")))
        return scores or "nothing was evaluated: eval.dataset is empty"

    async def _keep_best(self, score: float) -> None:
        """Save what was just evaluated if it is the best so far; nothing was trained in between."""
        step, version = self.position.step, self.position.version
        saved = await self.checkpoints.save_best(self.cluster, self.pool, step, version, self.live, score)
        if saved is not None:
            self.events.emit(CheckpointEvent, step=step, version=version, why="best", **vars(saved))

    async def _checkpoint(self, why: str) -> str:
        """Save the trainer, the prompts in flight and the finished groups as one unit."""
        await self._evaluated()
        step, version = self.position.step, self.position.version
        with self.timer.phase("checkpoint"):
            saved = await self.checkpoints.save(self.cluster, self.pool, step, version, self.live)
        self.events.emit(CheckpointEvent, step=step, version=version, why=why, **vars(saved))
        self.progress.update(last_checkpoint=step)
        return f"saved step {step}"

    async def _serve_commands(self) -> None:
        """Answer what is in the inbox; a pause holds the run here, where further commands are served until resume or stop."""
        while self.inbox.pending or self.paused:
            await self.inbox.arrived.wait()
            await self._serve(self.inbox.take())

    async def _serve(self, command: ControlCommand) -> None:
        try:
            ok, message = True, await self._carry_out(command)
        except BadCommand as error:
            ok, message = False, str(error)
        self.inbox.answer(command, ok, message, self.position.step, self.position.version)
        if command.name == "stop":
            raise Stopped("stopped as asked")

    async def _carry_out(self, command: ControlCommand) -> str:
        """Do what one command asks; returns the answer. Raises BadCommand when it cannot be done."""
        match command.name:
            case "pause":
                return "already paused" if self.paused else self._hold(True)
            case "resume":
                if not self.paused:
                    raise BadCommand("the run is not paused")
                return self._hold(False)
            case "checkpoint" | "stop":
                return await self._checkpoint("stop" if command.name == "stop" else "command")
            case "evaluate":
                return await self._evaluate()
            case "stop_after_step":
                self.stop_at = self.position.step + 1
                return f"stops after step {self.stop_at}"
            case "set":
                return self._set_knobs(command.args)
        raise BadCommand(f"unknown command {command.name}")

    def _hold(self, paused: bool) -> str:
        """Stop or go on with admission and training."""
        self.paused = paused
        self.pool.set_paused(paused)
        self._phase("paused" if paused else "running")
        return "paused; nothing new starts until resume" if paused else "running again"

    def _set_knobs(self, args: dict[str, Any]) -> str:
        if not args:
            raise BadCommand("set needs key=value")
        self.live = changed_knobs(self.live, args, self.config)
        self.pool.use_knobs(self.live)
        done = ", ".join(f"{key} = {self.live[key]}" for key in args)
        return f"{done} from step {self.position.step + 1}"

    def _phase(self, phase: str, detail: str = "") -> None:
        self.events.emit(PhaseEvent, step=self.position.step, version=self.position.version, phase=phase, detail=detail)
        self.progress.update(phase=phase, detail=detail)
