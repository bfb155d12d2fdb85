"""Live knobs and the command inbox."""

import asyncio
import os

import pytest

from engine.commands import BadCommand, Inbox, changed_knobs, live_knobs
from engine.config import Config
from engine.protocol import ControlEvent, EventWriter, send_command
from engine.wire import EventReader, RunDir

CORRECTED = Config.model_validate({"algo": {"advantage": {"is_correction_level": "token"}}})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("actor.adam.lr", "1e-4", 1e-4),
        ("actor.adam.lr", 0, 0.0),
        ("train.max_staleness", "2", 2),
        ("rollout.temperature", "0.7", 0.7),
        ("algo.advantage.is_correction_threshold", "0.5 2", (0.5, 2.0)),
        ("algo.advantage.is_correction_threshold", [3], (3.0,)),
    ],
)
def test_a_knob_gets_its_type(key, value, expected):
    assert changed_knobs(live_knobs(CORRECTED), {key: value}, CORRECTED)[key] == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor.adam.lr", "fast"),
        ("actor.adam.lr", "-1"),
        ("actor.adam.lr", "nan"),
        ("actor.adam.lr", "inf"),
        ("rollout.temperature", "0"),
        ("train.max_staleness", "1.5"),
        ("train.max_staleness", "-1"),
        ("algo.advantage.is_correction_threshold", "5 0.5"),
        ("algo.advantage.is_correction_threshold", "1 2 3"),
        ("rollout.batch_size", "4"),
    ],
)
def test_a_bad_value_is_refused_with_the_flag_in_the_message(key, value):
    with pytest.raises(BadCommand, match=key.replace(".", r"\.")):
        changed_knobs(live_knobs(CORRECTED), {key: value}, CORRECTED)


def test_setting_a_knob_changes_only_that_value():
    knobs = live_knobs(Config())
    wanted = {"algo.advantage.is_correction_threshold": (0.8, 1.2), "actor.adam.lr": 0.5}
    unchanged = {"train.max_staleness": 1, "rollout.temperature": 1.0}
    assert changed_knobs(knobs, wanted, Config()) == unchanged | wanted


@pytest.mark.parametrize(
    ("level", "key", "value", "why"),
    [
        ("token", "algo.advantage.is_correction_threshold", (float("nan"), 2.0), "number"),
        ("token", "algo.advantage.is_correction_threshold", (-1.0,), "upper bound above 0"),
        ("token", "train.max_staleness", 99_999_999, "from 0 to 64"),
        ("off", "train.max_staleness", 1, "needs a correction"),
    ],
)
def test_what_a_launch_would_refuse_is_refused_live(level, key, value, why):
    advantage = {"is_correction_level": level}
    config = Config.model_validate({"train": {"max_staleness": 0}, "algo": {"advantage": advantage}})
    knobs = live_knobs(config)
    with pytest.raises(BadCommand, match=why):
        changed_knobs(knobs, {key: value}, config)
    assert knobs == live_knobs(config)


async def test_strange_things_in_the_inbox_do_not_end_it(tmp_path):
    run = RunDir(tmp_path / "run").create()
    (run.control / "a.json").mkdir()
    os.mkfifo(run.control / "b.json")
    (run.control / "c.json").write_bytes(b"\xff{")
    (run.control / "d.json").symlink_to("/dev/zero")
    inbox = Inbox(run, EventWriter(run, "r", run.claim_attempt()))
    watcher = asyncio.create_task(inbox.watch())
    sent = send_command(run, "stop", who="ann")
    await asyncio.wait_for(inbox.arrived.wait(), 5)
    assert inbox.take().id == sent.id and not inbox.pending and not watcher.done()
    watcher.cancel()


async def test_the_inbox_collects_commands_in_order_and_answers_as_events(tmp_path):
    run = RunDir(tmp_path / "run").create()
    events = EventWriter(run, "r", run.claim_attempt())
    inbox = Inbox(run, events)
    sent = [send_command(run, name, who="ann") for name in ("pause", "checkpoint", "resume")]
    watcher = asyncio.create_task(inbox.watch())
    await asyncio.wait_for(inbox.arrived.wait(), 5)
    watcher.cancel()
    taken = [inbox.take() for _ in sent]
    assert [c.id for c in taken] == [c.id for c in sent]
    assert not inbox.arrived.is_set() and not list(run.control.iterdir())
    inbox.answer(taken[0], True, "paused", step=3, version=2)
    (answer,) = [ControlEvent.model_validate(e) for e in EventReader(events.folder).poll()]
    assert (answer.id, answer.name, answer.ok, answer.who, answer.step) == (sent[0].id, "pause", True, "ann", 3)
