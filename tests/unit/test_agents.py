"""Episodes of StepEnvRunner: token identity over turns, budgets, rewards, failures."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.agents import AgentError, DropRollout, Env, Episode, Result, StepEnvRunner, load_agent
from engine.agents.tokens import SegmentBuilder, TextCodec
from engine.records import InvariantError, check_rollout
from engine.rollout.transport import GenerateRequest, GenerateResult, Prompt, Sampling
from tests.scripted import EOS, CharTokenizer, Script, ScriptedEngine, run_virtual


class Dialogue(Env):
    """Answers with scripted results and records what it saw."""

    results: list[Result]
    seen: list[dict]
    closed: int

    async def step(self, state, **kwargs):
        type(self).seen.append(state)
        return self.results[len(self.seen) - 1]

    async def close(self):
        type(self).closed += 1


def dialogue(*results: Result) -> type[Dialogue]:
    return type("Scene", (Dialogue,), {"results": list(results), "seen": [], "closed": 0})


def run_episode(env_cls, engine=None, *, prompt="1+2=", max_len=64, sampling=Sampling(), chat=False):  # noqa: B008
    engine = engine or ScriptedEngine(Script(lambda turn: 3), routing=(2, 2))
    codec = TextCodec(CharTokenizer(), chat)
    episode = Episode("p:0@0#0/0", Prompt("p:0@0", prompt, "3", {"k": 1}), sampling, max_len, codec, engine.generate)
    return run_virtual(StepEnvRunner(env_cls).execute(episode)), engine


def more(observation="", **kwargs) -> Result:
    return Result(observation=observation, terminated=False, **kwargs)


def test_a_single_turn_keeps_the_sampled_ids_and_masks_only_them():
    env = dialogue(Result(reward=0.5, info={"ok": True, "word": "x", "n": np.int64(3)}))
    rollout, _ = run_episode(env)
    (segment,) = rollout.segments
    assert segment.token_ids[:4].tolist() == CharTokenizer().encode("1+2=")
    assert segment.loss_mask.tolist() == [False] * 4 + [True] * 3
    assert segment.token_ids[-1] == EOS
    assert segment.logprobs.tolist() == [0.0] * 4 + [-1 / 64] * 3
    assert segment.versions.tolist() == [-1] * 4 + [0] * 3
    assert (rollout.reward, rollout.score, rollout.turns) == (0.5, 0.5, 1)
    assert rollout.terminated and not rollout.truncated
    assert rollout.info == {"ok": 1.0, "n": 3.0}
    assert env.closed == 1
    check_rollout(rollout)


def test_the_environment_sees_text_label_metadata_and_sampling():
    env = dialogue(more("a"), Result())
    run_episode(env, sampling=Sampling(temperature=0.7))
    first, second = env.seen
    assert first["observation_text"] == "1+2=" and first["label"] == "3" and first["metadata"] == {"k": 1}
    assert first["sampling_params"].temperature == 0.7
    assert second["observation_text"] == "1+2=" + first["action_text"] + "a"
    assert len(first["action_text"]) == 2, "the closing EOS is not part of the text"


def test_feedback_is_appended_masked_and_the_prefix_never_changes():
    rollout, engine = run_episode(dialogue(more("ab", reward=1.0), more("", reward=0.25), Result(reward=1, score=9.0)))
    first, second, third = (r.token_ids for r in engine.requests)
    feedback = CharTokenizer().encode("ab")
    assert second[: len(first)] == first and second[-2:] == feedback
    assert third[: len(second)] == second
    (segment,) = rollout.segments
    assert segment.token_ids[: len(third)].tolist() == third
    assert segment.loss_mask.tolist() == [False] * 4 + [True] * 3 + [False] * 2 + [True] * 6
    assert (rollout.reward, rollout.score, rollout.turns) == (2.25, 9.0, 3)
    check_rollout(rollout)


def test_routing_rows_lie_at_their_positions_and_are_asked_for_once():
    rollout, engine = run_episode(dialogue(more("ab"), Result()))
    assert [r.routed_from for r in engine.requests] == [0, 6]
    routing = rollout.segments[0].routed_experts
    assert routing.dtype == np.int16 and routing.shape == (12, 2, 2)
    layers, slots = np.indices((2, 2))
    for position in range(11):
        assert np.array_equal(routing[position], (position + layers + slots) % 8)
    assert (routing[11] == -1).all(), "the last sampled token was never fed"


@given(st.lists(st.tuples(st.text("abc", max_size=5), st.integers(1, 6)), min_size=1, max_size=6), st.integers(8, 60))
@settings(max_examples=50, deadline=None)
def test_any_conversation_is_trained_as_it_was_sampled(turns, max_len):
    lengths = iter([length for _, length in turns] + [1] * 9)
    engine = ScriptedEngine(Script(lambda turn: next(lengths)), routing=(1, 2))
    results = [more(text) for text, _ in turns[:-1]] + [Result()]
    rollout, _ = run_episode(dialogue(*results), engine, max_len=max_len)
    check_rollout(rollout, newest_version=0)
    (segment,) = rollout.segments
    assert len(segment) <= max_len
    for request in engine.requests:
        assert segment.token_ids[: len(request.token_ids)].tolist() == request.token_ids
    sampled_at = np.flatnonzero(segment.loss_mask)
    last = engine.requests[-1]
    for position in sampled_at[sampled_at >= len(last.token_ids)]:
        assert segment.token_ids[position] == engine.script.token(last, position)
    rows_T = (segment.routed_experts >= 0).all(axis=(1, 2))
    assert rows_T.tolist() == [True] * (len(segment) - 1) + [False]
    assert rollout.truncated == (rollout.turns < len(turns) or (len(segment) == max_len and segment.token_ids[-1] != EOS))


def test_the_context_limit_truncates_and_says_so():
    rollout, engine = run_episode(dialogue(more("a" * 40), Result()), max_len=40)
    assert rollout.truncated and rollout.turns == 1 and len(rollout.segments[0]) == 7
    engine = ScriptedEngine(Script(lambda turn: 30))
    rollout, _ = run_episode(dialogue(Result()), engine, max_len=10)
    assert rollout.truncated and rollout.terminated and len(rollout.segments[0]) == 10


def test_an_over_long_or_empty_prompt_is_dropped_by_name():
    for prompt, reason in (("1" * 20, "prompt_too_long"), ("", "empty_prompt")):
        env = dialogue(Result())
        with pytest.raises(DropRollout) as dropped:
            run_episode(env, prompt=prompt, max_len=20)
        assert dropped.value.reason == reason and env.closed == 1


def test_sampling_overrides_hold_for_one_turn():
    override = {"max_tokens": 1, "temperature": 0.5}
    rollout, engine = run_episode(
        dialogue(more(sampling_params=override), more(), Result()), sampling=Sampling(max_tokens=8, seed=5)
    )
    sampled = [r.sampling for r in engine.requests]
    assert [s.temperature for s in sampled] == [1.0, 0.5, 1.0]
    assert [s.max_tokens for s in sampled] == [8, 1, 8]
    (segment,) = rollout.segments
    assert 0.5 in segment.temperatures[segment.loss_mask] and set(segment.temperatures[~segment.loss_mask]) == {1.0}
    assert [s.seed for s in sampled] == [5, 6, 7]
    with pytest.raises(ValueError, match="unknown top_q; known: temperature"):
        run_episode(dialogue(more(sampling_params={"top_q": 1}), Result()))
    with pytest.raises(ValueError, match="greedy turn cannot be trained"):
        run_episode(dialogue(more(sampling_params={"temperature": 0}), Result()))


def test_a_missing_reward_stays_missing():
    rollout, _ = run_episode(dialogue(more(reward=1.0), Result(reward=None)))
    assert math.isnan(rollout.reward) and math.isnan(rollout.score)


@pytest.mark.parametrize("what", ["reset", "step", "close", "result", "cancel"])
def test_close_runs_whatever_happens_and_the_first_error_wins(what):
    closed = []

    class Broken(Env):
        async def reset(self, state, **kwargs):
            if what == "reset":
                raise KeyError("reset")
            return state

        async def step(self, state, **kwargs):
            if what == "step":
                raise KeyError("step")
            if what == "cancel":
                raise asyncio.CancelledError("cancel")
            return "no result" if what == "result" else Result()

        async def close(self):
            closed.append(1)
            raise OSError("close")

    expected = {"close": OSError, "result": TypeError, "cancel": asyncio.CancelledError}.get(what, KeyError)
    with pytest.raises(expected):
        run_episode(Broken)
    assert closed == [1]


def test_the_chat_template_takes_strings_and_messages():
    assert run_episode(dialogue(Result()), chat=True)[0].texts[0] == "?1+2=="
    messages = [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]
    assert run_episode(dialogue(Result()), prompt=messages, chat=True)[0].texts[0] == "?1?2="
    with pytest.raises(ValueError, match=r"data\.apply_chat_template"):
        run_episode(dialogue(Result()), prompt=messages)
    with pytest.raises(ValueError, match="string or a list"):
        run_episode(dialogue(Result()), prompt=7)


def test_an_aborted_generation_fails_the_episode():
    with pytest.raises(RuntimeError, match="aborted"):
        run_episode(dialogue(Result()), ScriptedEngine(fault=lambda request: "abort"))


async def test_long_texts_are_tokenized_off_the_loop():
    loop_thread = []

    class Slow(CharTokenizer):
        def encode(self, text, add_special_tokens=True):
            try:
                loop_thread.append(asyncio.get_running_loop() is not None)
            except RuntimeError:
                loop_thread.append(False)
            return super().encode(text)

    codec = TextCodec(Slow())
    assert await codec.encode_prompt("1" * 20_000) == [2] * 20_000
    assert await codec.encode_prompt("12") == await codec.encode_prompt("12") == [2, 3]
    assert loop_thread == [False, True], "once in a thread, once on the loop, once from the cache"


def test_the_segment_builder_refuses_results_that_do_not_fit():
    builder = SegmentBuilder([1, 2])
    with pytest.raises(InvariantError, match="2 tokens, 1 log-probs"):
        builder.append_sampled(GenerateResult([1, 2], [0.0], [0, 0], "stop"), 1.0)
    with pytest.raises(InvariantError, match="do not fit"):
        SegmentBuilder([1, 2]).append_sampled(GenerateResult([1], [0.0], [0], "stop", np.zeros((3, 1, 1), np.uint8)), 1.0)
    short = SegmentBuilder([1, 2])
    short.append_sampled(GenerateResult([1], [0.0], [0], "stop", np.zeros((1, 1, 1), np.uint8)), 0.5)
    assert short.build().routed_experts[:, 0, 0].tolist() == [0, -1, -1], "rows that are missing stay -1"
    assert short.build().temperatures.tolist() == [1, 1, 0.5]


AGENT = """
from engine.agents import Env, Result, StepEnvRunner
from helper_of_agent import REWARD

class Judge(Env):
    async def step(self, state, **kwargs):
        return Result(reward=REWARD)

class AgentRunner(StepEnvRunner):
    def __init__(self):
        super().__init__(Judge)
"""


def test_an_agent_module_is_loaded_with_its_neighbours(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "helper_of_agent.py").write_text("REWARD = 4.0")
    runner = load_agent(tmp_path / "agent.py")
    engine = ScriptedEngine()
    episode = Episode("r", Prompt("p", "1"), Sampling(), 64, TextCodec(CharTokenizer()), engine.generate)
    assert run_virtual(runner.execute(replace(episode))).reward == 4.0
    assert isinstance(engine.requests[0], GenerateRequest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file"),
        ("import no_such_module", "importing agent.py failed: ModuleNotFoundError"),
        ("raise SystemExit(3)", "importing agent.py failed: SystemExit: 3"),
        ("x = 1", "must export a class AgentRunner"),
        ("class AgentRunner: pass", "must derive from"),
        ("class AgentRunner:\n    def __init__(self, x): pass", r"AgentRunner\(\) of agent.py failed: TypeError"),
    ],
)
def test_an_unusable_agent_module_is_one_clear_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "agent.py").write_text(text)
    with pytest.raises(AgentError, match=message) as error:
        load_agent(tmp_path / "agent.py")
    assert str(error.value).startswith("train.agent_path") and "\n" not in str(error.value)
