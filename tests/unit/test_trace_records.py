"""What the engine writes of traced rollouts."""

import asyncio
import gzip

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.batch import prepare
from engine.config import Config
from engine.protocol import TraceRollout
from engine.records import Rollout, Segment
from engine.rollout.pool import Batch
from engine.rollout.transport import FinishedGroup, Prompt, RolloutSummary, SegmentSummary
from engine.traces import TraceWriter, token_pieces, trace_segment
from engine.train.plan import TraceTensors, TrainReport
from engine.wire import RunDir


def segment() -> Segment:
    return Segment(
        token_ids=np.array([7, 8, 9], np.int32), loss_mask=np.array([0, 1, 1], bool),
        logprobs=np.array([0.0, -0.5, -0.25], np.float32), versions=np.array([-1, 3, 3], np.int32),
    )  # fmt: skip


def outcome(sample: int) -> TraceTensors:
    return TraceTensors(sample, np.array([0.0, -0.5, -1.25], np.float32), np.array([0, 1, 0], bool),
                        np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0]], bool))  # fmt: skip


def made(advantage):
    return trace_segment(segment(), outcome(0), ["a", "b", "c"], advantage)


def test_a_segment_is_written_token_by_token():
    record = made(0.5)
    assert (record.mask, record.kept, record.versions) == ([0, 1, 1], [0, 1, 0], [-1, 3, 3])
    assert record.train_logprobs == [0.0, -0.5, -1.25] and record.routing_mismatch == [[], [0, 2], []]
    assert record.advantages is None


def test_advantages_of_their_own_stand_at_the_sampled_tokens():
    assert made(np.array([0.1, -0.2], np.float32)).advantages == [0.0, 0.1, -0.2]


def test_a_step_is_written_with_whole_groups_and_what_they_were_trained_with(tmp_path):
    names = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    heavy = {
        f"payload-{g}": [Rollout(f"{g}{i}", f"{g}@0", [segment()], reward=float(i), label=(None, "its own")[i]) for i in (0, 1)]
        for g in "ab"
    }
    groups = [
        FinishedGroup(g, Prompt(f"{g}@0", "?", label=391),
                      [RolloutSummary(f"{g}{i}", float(i), float(i), 1, False, [SegmentSummary(3, 2, {3: 2})]) for i in (0, 1)],
                      payload=f"payload-{g}")
        for g in "ab"
    ]  # fmt: skip
    config = Config.model_validate({"algo": {"advantage": {"estimator": "grpo"}}, "trace": {"rollouts_per_step": 2}})
    batch = prepare(Batch(4, groups, {}, []), max_staleness=2, config=config)
    outcomes = [outcome(i) for i, sample in enumerate(batch.order.samples) if sample.trace]
    run = RunDir(tmp_path).create()
    writer = TraceWriter(run, "r", 1, config.trace, lambda ids: [f"<{i}>" for i in ids], heavy.__getitem__)
    asyncio.run(writer.write(7, batch, [TrainReport({}, {}, True, outcomes)]))
    lines = gzip.decompress((run.rollouts / "1-000007.jsonl.gz").read_bytes()).splitlines()
    records = [TraceRollout.model_validate_json(line) for line in lines]
    assert [(r.group_id, r.rollout_id) for r in records] == [(g, f"{g}{i}") for g, i in names[:2]]
    assert {(r.version, r.max_staleness) for r in records} == {(4, 2)}
    assert [r.label for r in records] == ["391", "its own"], "the data's, unless the environment judged by another one"
    assert records[1].advantage == -records[0].advantage > 0 and records[0].segments[0].pieces == ["<7>", "<8>", "<9>"]


def test_a_character_of_several_tokens_stands_at_its_last_one(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pieces = token_pieces(tmp_path / "tokenizer.json")
    assert pieces(tokenizer.encode("a漢é").ids) == ["a", "", "", "漢", "", "é"]
    assert "".join(pieces(tokenizer.encode("漢").ids[:2] + tokenizer.encode("xyz").ids)).endswith("yz")
