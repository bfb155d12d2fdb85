"""The loop over parts that only note what is asked of them, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine import commands
from engine.commands import live_knobs
from engine.config import Config
from engine.controller import Controller
from engine.rollout.pool import Batch
from engine.rollout.transport import FinishedGroup, Prompt, RolloutSummary, SegmentSummary
from engine.train.plan import TrainReport
from engine.wire import RunDir


@dataclass
class Notes:
    """What happened, in order."""

    log: list[str] = field(default_factory=list)
    trained: asyncio.Event = field(default_factory=asyncio.Event)


class Part:
    """Answers every call; `answers` by name, None otherwise."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        async def call(*_args: Any, **_more: Any) -> Any:
            return self.answers.get(name)

        return call


class Trainer(Part):
    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes, self.batches = notes, 0

    async def train(self, order: Any) -> TrainReport:
        self.batches += 1
        self.notes.log.append(f"train {self.batches}")
        if self.batches > 1:
            self.notes.trained.set()
        return TrainReport({}, {}, stepped=True)


class Pool(Part):
    """Batches of one group with two rollouts."""

    capacity = 0

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes, self.version = notes, 0

    async def next_batch(self) -> Batch:
        rollouts = [RolloutSummary(f"r{i}", float(i), 0.0, 1, False, [SegmentSummary(4, 2, {self.version: 2})]) for i in (0, 1)]
        return Batch(self.version, [FinishedGroup("g", Prompt("g", ""), rollouts, None)], {})

    def published(self, version: int) -> None:
        self.notes.log.append(f"publish {version}")
        self.version = version

    def start(self) -> None:
        pass

    def set_paused(self, paused: bool) -> None:
        self.notes.log.append("admission stops" if paused else "admission goes on")


class Evaluator:
    def __init__(self, notes: Notes, waits: bool) -> None:
        self.notes, self.waits = notes, waits

    async def run(self, pool: Any, version: int) -> dict[str, float]:
        self.notes.log.append(f"evaluate {version}")
        if self.waits and version == 1:
            await self.notes.trained.wait()
        self.notes.log.append(f"evaluated {version}")
        return {"eval/x/score_mean": 0.5}


class Checkpoints:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    async def save_best(self, *_args: Any) -> None:
        self.notes.log.append("save best")


class Silent:
    """A synchronous part whose methods do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_more: None


class Inbox(Silent):
    pending = False

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    async def watch(self) -> None:
        await asyncio.Event().wait()


class Answers(commands.Inbox):
    """Commands that are there from the start, and when one is answered those that it brings."""

    def __init__(self, notes: Notes, *names: str, then: dict[str, list[str]] | None = None) -> None:
        super().__init__(RunDir("unused"), Silent())
        self.notes, self.then = notes, then or {}
        self.send(names)

    def send(self, names: Iterable[str]) -> None:
        for name in names:
            self.put(name, "ann")

    async def watch(self) -> None:
        await asyncio.Event().wait()

    def answer(self, command: Any, ok: bool, message: str, step: int, version: int) -> None:
        self.notes.log.append(f"{command.name} {'done' if ok else 'refused'}")
        self.send(self.then.pop(command.name, ()))


class Progress(Silent):
    async def engine_metrics(self, cluster: Any) -> dict[str, float]:
        return {}


def controller(notes: Notes, waits: bool, **ckpt: Any) -> Controller:
    config = Config.model_validate({
        "rollout": {"batch_size": 1, "n_samples_per_prompt": 2}, "eval": {"steps": 1},
        "train": {"max_steps": 2, "max_staleness": 0}, "ckpt": {"disable_final_save": True, **ckpt},
    })  # fmt: skip

    class Cluster:
        trainers, engines = (Trainer(notes),), (Part(pause=0),)

    class Manifest:
        total_bytes = 1

    class Never(Silent):
        def due(self, version: int) -> bool:
            return False

    return Controller(
        config=config, cluster=Cluster(), pool=Pool(notes), events=Silent(), inbox=Inbox(), evaluator=Evaluator(notes, waits),
        traces=Part(), progress=Progress(), checkpoints=Checkpoints(notes), manifest=Manifest(), probe=Never(),
        live=live_knobs(config),
    )  # fmt: skip


@pytest.mark.timeout(20)
async def test_an_evaluation_holds_up_the_next_publication_and_not_the_training():
    notes = Notes()
    await controller(notes, waits=True).run()
    # The first evaluation ends only once the second batch is trained.
    expected = ["train 1", "publish 1", "evaluate 1", "train 2", "evaluated 1", "publish 2", "evaluate 2", "evaluated 2"]
    assert notes.log == expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("every", "versions"), [(1, ["evaluated 1", "evaluated 2"]), (-1, ["evaluated 2"])])
async def test_the_last_step_is_evaluated_once(every, versions):
    notes = Notes()
    loop = controller(notes, waits=False)
    loop.config = Config.model_validate({**loop.config.model_dump(), "eval": {"steps": every, "eval_at_end": True}})
    await loop.run()
    assert [line for line in notes.log if line.startswith("evaluated")] == versions


@pytest.mark.timeout(20)
async def test_the_best_weights_are_saved_before_they_change():
    notes = Notes()
    await controller(notes, waits=False, best_metric_key="eval/x/score_mean").run()
    one, two = (["train {0}", "publish {0}", "evaluate {0}", "evaluated {0}", "save best"] for _ in range(2))
    assert notes.log == [line.format(1) for line in one] + [line.format(2) for line in two]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("at_once", "then"),
    [(["pause", "pause", "resume", "resume", "evaluate"], {}), (["pause"], {"pause": ["pause", "resume", "resume", "evaluate"]})],
)
async def test_commands_that_come_together_are_all_answered_in_their_order(at_once, then):
    notes = Notes()
    loop = controller(notes, waits=False)
    loop.inbox = Answers(notes, *at_once, then=then)
    await loop.run()
    assert notes.log[:9] == ["admission stops", "pause done", "pause done", "admission goes on", "resume done", "resume refused",
                             "evaluate 0", "evaluated 0", "evaluate done"]  # fmt: skip
    assert notes.log[9] == "train 1"
