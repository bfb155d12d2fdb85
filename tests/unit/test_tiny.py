"""Tiny models built in code, their tokenizer and warm-up, and the sorting task they are made for."""

import asyncio
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from engine.agents import AgentError, load_agent
from engine.agents.tokens import TextCodec
from engine.config import Config, TinyConfig
from engine.data import load_eval_sets, load_prompts
from engine.recipes import load
from engine.train.tiny import ASCII, END, START, build_for_run, build_tiny, build_tokenizer, warm_up

AGENT = Path(__file__).parents[2] / "recipes" / "sort_digits" / "agent.py"
SMALL = TinyConfig(hidden_size=32, num_layers=1, num_experts=4)


@pytest.fixture(scope="module")
def agent():
    return sys.modules[type(load_agent(AGENT)).__module__]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(tmp_path, kind):
    first, same, other = (build_tiny(tmp_path / f"{i}", kind, SMALL, seed) for i, seed in enumerate((1, 1, 2)))
    assert content(first) == content(same)
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_building_leaves_the_random_state_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_tiny(tmp_path / "m", "qwen3", SMALL, seed=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind, model_type", [("qwen3", "qwen3"), ("qwen3_moe", "qwen3_moe")])
def test_transformers_loads_it_with_matching_vocabulary_and_plain_sampling(tmp_path, kind, model_type):
    path = build_tiny(tmp_path / "m", kind, SMALL)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert model.config.model_type == model_type
    assert model.config.vocab_size == len(tokenizer)
    assert model.dtype == torch.float32
    generation = GenerationConfig.from_pretrained(path)
    assert (generation.eos_token_id, generation.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert not {"temperature", "top_k", "top_p", "do_sample", "repetition_penalty"} & generation.to_diff_dict().keys()


@pytest.mark.parametrize("hidden_size", [32, 64, 96])
def test_head_size_is_one_that_vllm_computes_on_cpu(tmp_path, hidden_size):
    config = AutoModelForCausalLM.from_pretrained(build_tiny(tmp_path / "m", "qwen3", TinyConfig(hidden_size=hidden_size))).config
    assert config.head_dim == 32
    assert config.num_attention_heads % config.num_key_value_heads == 0


def test_moe_shape_follows_the_arguments(tmp_path):
    path = build_tiny(tmp_path / "m", "qwen3_moe", TinyConfig(hidden_size=32, num_layers=3, num_experts=6, top_k=3))
    config = AutoModelForCausalLM.from_pretrained(path).config
    assert (config.hidden_size, config.num_hidden_layers) == (32, 3)
    assert (config.num_experts, config.num_experts_per_tok) == (6, 3)


TOKENIZER = build_tokenizer()


@settings(deadline=None)
@given(st.text(alphabet=ASCII))
def test_one_token_per_character_and_back(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_characters_outside_the_alphabet_become_the_unknown_token():
    assert TOKENIZER.encode("aé") == [*TOKENIZER.encode("a"), TOKENIZER.unk_token_id]


def test_the_saved_tokenizer_reads_like_the_built_one(tmp_path):
    loaded = AutoTokenizer.from_pretrained(build_tiny(tmp_path / "m", "qwen3", SMALL))
    text = f"a b\n{START}x{END}"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert len(loaded.encode(text)) == 7


def test_chat_template_ends_every_turn_with_the_closing_token():
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    rendered = TextCodec(TOKENIZER, apply_chat_template=True).render(chat)
    assert rendered == f"{START}user\nhi{END}\n{START}assistant\nyo{END}\n{START}assistant\n"


def test_warm_up_teaches_and_repeats_exactly(tmp_path):
    examples = [("a=", "b"), ("b=", "a")]
    paths = [build_tiny(tmp_path / name, "qwen3_moe", SMALL) for name in "xy"]
    losses = [warm_up(path, examples, steps=90, lr=5e-3, seed=3) for path in paths]
    assert losses[0] == losses[1] < 0.1
    first, second = (load_file(path / "model.safetensors") for path in paths)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_warm_up_without_examples_says_what_to_change(tmp_path):
    with pytest.raises(ValueError, match=r"tiny\.warmup_steps"):
        warm_up(build_tiny(tmp_path / "m", "qwen3", SMALL), [], 1, 1e-3)


def run_config(**tiny) -> Config:
    return Config.model_validate({"actor": {"model_name_or_path": "tiny:qwen3_moe"}, "tiny": tiny})


def test_a_run_builds_its_model_once(tmp_path):
    config = run_config(hidden_size=32, num_layers=1, num_experts=4, warmup_steps=2)
    path = build_for_run(config, tmp_path / "model", AGENT)
    before = content(path)
    stamps = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert build_for_run(config, path, AGENT) == path
    assert content(path) == before
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == stamps
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_warm_up_needs_examples_from_the_agent(tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("from engine.agents import Env, StepEnvRunner\n"
                      "class AgentRunner(StepEnvRunner):\n    def __init__(self): super().__init__(Env)\n")  # fmt: skip
    with pytest.raises(AgentError, match=r"silent\.py exports no warmup_examples"):
        build_for_run(run_config(hidden_size=32, num_layers=1, warmup_steps=1), tmp_path / "model", silent)
    assert not (tmp_path / "model").exists()


def test_the_warm_up_shows_the_digits_but_not_their_order(agent):
    examples = agent.warmup_examples(0, 2000)
    assert examples == agent.warmup_examples(0, 2000)
    assert {len(answer) for _, answer in examples} == {3, 4, 5}
    assert all(sorted(prompt[:-1]) == sorted(answer) and prompt[-1] == "=" for prompt, answer in examples)
    # 1/6, 1/24 and 1/120 of the answers are right by chance, repeated digits a little more.
    right = sum(answer == "".join(sorted(prompt[:-1])) for prompt, answer in examples) / len(examples)
    assert 0.07 < right < 0.16


@pytest.mark.parametrize(
    "answer, score", [("0358", 1.0), ("8530", 0.0), ("0385", 0.25), ("03581", 0.25), ("03", 0.125), ("", 0.0), ("0303", 0.25)]
)
def test_score_of_an_answer(agent, answer, score):
    assert agent.score_answer(answer, "0358") == score


def test_the_environment_shortens_the_question_and_scores_what_was_sorted(agent):
    entry = {"metadata": {"original_numbers": ["5.0", "0.0", "8.0", "3.0"], "direction": "descending"}}

    async def episode(action: str):
        env = agent.SortEnv()
        state = await env.reset({"observation": "long question", "label": "", "metadata": {"entry": entry}})
        return state, await env.step(state | {"action_text": action})

    state, result = asyncio.run(episode("0358"))
    assert (state["observation"], state["label"]) == ("5083=", "0358")
    assert (result.reward, result.score, result.terminated, result.info) == (1.0, 1.0, True, {"exact": True})
    _, wrong = asyncio.run(episode("8530"))
    assert (wrong.reward, wrong.info) == (0.0, {"exact": False})


def test_the_demo_is_evaluated_on_numbers_that_it_never_trains_on():
    _, config, _ = load("demo", [])
    train = load_prompts(config.data, seed=1)
    asked = {tuple(p.metadata["entry"]["metadata"]["original_numbers"]) for p in iter(train.next, None)}
    held_out = [p.metadata["entry"]["metadata"]["original_numbers"] for ps in load_eval_sets(config.eval, config.data).values()
                for p in ps]  # fmt: skip
    assert len({tuple(n) for n in held_out}) == 200
    assert not asked & {tuple(n) for n in held_out}
