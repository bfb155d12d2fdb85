"""One attempt of a run: build the model, start the actors, restore, hand over to the controller, end with a reason."""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.batch import load_own_estimator
from engine.checkpoints import Checkpoints
from engine.commands import Inbox, live_knobs
from engine.config import Config
from engine.controller import Controller, Position, Stopped
from engine.data import load_eval_sets, load_prompts
from engine.errors import name_and_message, one_line
from engine.evaluate import Evaluator
from engine.flags import load_run_toml
from engine.placement import Cluster
from engine.protocol import EventWriter, FaultEvent, Meta, PhaseEvent, read_record
from engine.report import Probe, Progress, probe_sequences
from engine.rollout.dispatch import RunnerDispatch
from engine.rollout.mailbox import MailboxClient
from engine.rollout.pool import RolloutPool, RunFailed
from engine.rollout.runner import RunnerSpec
from engine.rollout.transport import EngineDead, Sampling
from engine.specs import engine_specs, group_limit_s, local_model, resolve_device, trainer_specs
from engine.sync.publish import PublishError, learn_copies, publish
from engine.traces import TraceWriter, token_pieces
from engine.wire import EXIT_COMPLETED, EXIT_FAILED, EXIT_STOPPED, RunDir


@dataclass
class Attempt:
    """Everything one attempt needs while it starts."""

    run: RunDir
    number: int
    run_id: str
    config: Config
    events: EventWriter
    progress: Progress
    inbox: Inbox
    cluster: Cluster

    async def execute(self, listen: Callable[[], None]) -> None:
        """From nothing to the end of training. Raises Stopped, or whatever ended the run.

        `listen` installs the signal handlers once more: Ray puts one of its own in their place, which aborts the process 3 s
        after a SIGTERM, however long the checkpoint takes.
        """
        if self.config.algo.advantage.estimator_path:
            load_own_estimator(self.run.path / self.config.algo.advantage.estimator_path)
        self._phase("starting", "ray")
        await asyncio.to_thread(self.cluster.start_ray)
        listen()
        self.cluster.create_actors()
        self._phase("starting", "model")
        model = await asyncio.to_thread(self._build_model)
        info = await self._start_actors(model)
        controller = await self._controller(model, info)
        # What start-up left stays for good; full collections over it would hold up the loop for a third of a second.
        gc.freeze()
        await controller.run()

    def _build_model(self) -> Path:
        """The model directory; tiny:* models are built and warmed up inside the run directory, once."""
        name = self.config.actor.model_name_or_path
        if not name.startswith("tiny:"):
            return local_model(name)
        from engine.train.tiny import build_for_run

        return build_for_run(self.config, self.run.path / "model", self.run.path / self.config.train.agent_path)

    async def _start_actors(self, model: Path) -> dict[str, Any]:
        """Bring up trainers, engines and runners side by side; returns what trainer rank 0 says of the model."""
        import ray

        self._phase("starting", "engines and trainer")
        cluster, config = self.cluster, self.config
        rendezvous = await cluster.trainers[0].free_address()
        trainers = [t.setup(s) for t, s in zip(cluster.trainers, trainer_specs(config, model, rendezvous))]
        engines = [e.start(s) for e, s in zip(cluster.engines, engine_specs(config, model))]
        infos, facts = await asyncio.gather(asyncio.gather(*trainers), asyncio.gather(*engines))
        trained, sampled = infos[0]["moe_layers"], facts[0]["routed_layers"]
        if trained and trained != sampled:  # routing travels without layer names: both sides must mean the same layers
            raise RuntimeError(f"the trainer routes in layers {trained}, the sampler reports layers {sampled}")
        await cluster.router.start([MailboxClient(e) for e in cluster.engines], (EngineDead, ray.exceptions.RayActorError))
        spec = RunnerSpec(str(self.run.path / config.train.agent_path), str(model), config, infos[0]["vocab_size"])
        await asyncio.gather(*[r.start(spec, MailboxClient(cluster.router), ray.put) for r in cluster.runners])
        await self._join_transfer_groups()
        return infos[0]

    async def _join_transfer_groups(self) -> None:
        """Trainer rank 0 with every engine worker; colocated: each rank with the engine on its GPU."""
        config, trainers, engines = self.config, self.cluster.trainers, self.cluster.engines
        cuda = resolve_device(config) == "cuda"
        pairs = [(t, [e]) for t, e in zip(trainers, engines)] if config.placement.colocate else [(trainers[0], engines)]
        kind = "ipc" if config.placement.colocate else "nccl" if cuda else "gloo"
        size = config.vllm.tensor_parallel_size
        joins = []
        for trainer, members in pairs:
            host, port = await trainer.free_address()
            world = 1 + size * len(members)
            joins.append(trainer.init_transfer(host, port, world, kind))
            joins += [e.init_transfer(host, port, 1 + i * size, world, kind) for i, e in enumerate(members)]
        await asyncio.gather(*joins)
        if cuda:  # kernels for CPU keep the weights in a layout of their own
            reasons = await learn_copies(trainers, engines, await trainers[0].weight_manifest())
            if any(reasons):
                self._phase("starting", f"weights go through vLLM's loaders: {next(filter(None, reasons))}")

    async def _controller(self, model: Path, info: dict[str, Any]) -> Controller:
        import ray

        config, cluster = self.config, self.cluster
        live = live_knobs(config)
        manifest = await cluster.trainers[0].weight_manifest()
        checkpoints = Checkpoints(self.run, config)
        prompts = load_prompts(config.data, seed=config.train.seed, epochs=config.train.num_episodes)
        dispatch = RunnerDispatch(cluster.runners, (ray.exceptions.RayActorError,), group_limit_s(config))
        pool = RolloutPool(prompts, dispatch, config)
        position = Position()
        saved = await checkpoints.restore(cluster, pool)
        if saved is not None:
            step, version, live = saved
            position = Position(step, version)
            pool.use_knobs(live)
            await publish(cluster.trainers, cluster.engines, manifest, position.version)
            pool.published(position.version)
        pieces = token_pieces(model / "tokenizer.json")
        return Controller(
            config=config, cluster=cluster, pool=pool, events=self.events, inbox=self.inbox,
            evaluator=self._evaluator(),
            traces=TraceWriter(self.run, self.run_id, self.number, config.trace, pieces, ray.get),
            progress=self.progress, checkpoints=checkpoints, manifest=manifest, live=live, position=position,
            probe=Probe(probe_sequences(config.train.probe_sequences, min(32, config.data.max_len - 1),
                                        info["vocab_size"], config.train.seed), config.train.probe_every),
        )  # fmt: skip

    def _evaluator(self) -> Evaluator:
        config = self.config.eval
        tokens = config.max_new_tokens or self.config.rollout.max_new_tokens
        return Evaluator(load_eval_sets(config, self.config.data), Sampling(config.temperature, 1.0, tokens),
                         config.n_samples_per_prompt)  # fmt: skip

    def _phase(self, phase: str, detail: str) -> None:
        self.events.emit(PhaseEvent, phase=phase, detail=detail)
        self.progress.update(phase=phase, detail=detail, max_steps=self.config.train.max_steps)


async def _run(attempt: Attempt) -> int:
    """Execute with signals turned into a stop command; every end is written down with its reason."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if attempt.progress.state.get("phase") in ("running", "paused"):
            attempt.inbox.put("stop", "signal")
        else:
            work.cancel()

    def listen() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

    listen()
    work = asyncio.create_task(attempt.execute(listen))
    try:
        await work
        return _ended(attempt, "completed", "", EXIT_COMPLETED)
    except Stopped as stopped:
        return _ended(attempt, "cancelled", str(stopped), EXIT_STOPPED)
    except asyncio.CancelledError:
        return _ended(attempt, "cancelled", "stopped before training began", EXIT_STOPPED)
    except Exception as error:
        kind, said = name_and_message(error)
        attempt.events.emit(FaultEvent, what=kind, detail=said, fatal=True)
        if not isinstance(error, (RunFailed, PublishError)):
            import traceback

            traceback.print_exc()
        return _ended(attempt, "failed", one_line(error), EXIT_FAILED)
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(attempt.cluster.shutdown(), 8)


def _ended(attempt: Attempt, outcome: str, detail: str, code: int) -> int:
    attempt.events.emit(PhaseEvent, phase="stopping", detail=detail or outcome)
    attempt.progress.update(phase="stopping", outcome=outcome, error=detail if outcome == "failed" else None, detail=detail)
    return code


def attempt(path: str, number: int) -> int:
    """Run attempt `number` of the run directory `path`; returns the process's exit code."""
    os.umask(0o077)
    run = RunDir(path)
    meta = read_record(run.meta, Meta)
    run_id = meta.run if meta else run.path.name
    config = load_run_toml(run.run_toml)
    events = EventWriter(run, run_id, number)
    progress = Progress(run.attempt(number) / "progress.json", {"started": time.time()})
    job = Attempt(run, number, run_id, config, events, progress, Inbox(run, events), Cluster(config))
    try:
        return asyncio.run(_run(job))
    finally:
        events.close()
