"""Prompt sources, mixing, order and the exact cursor."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import DataConfig, EvalConfig
from engine.data import DataError, PromptStream, Source, draw_sources, load_eval_sets, load_prompts, parse_value, split_limit


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def rows(count, tag=""):
    return [{"input": f"{tag}{i}", "answer": i, "level": i % 3} for i in range(count)]


def config(*specs, **options) -> DataConfig:
    return DataConfig(prompt_dataset=specs, **({"label_key": "answer"} | options))


def take_all(stream):
    return list(iter(stream.next, None))


def test_jsonl_rows_become_prompts_with_label_and_the_rest_as_metadata(tmp_path):
    stream = load_prompts(config(write_jsonl(tmp_path / "sums.jsonl", rows(5))), seed=0, epochs=2)
    prompts = take_all(stream)
    assert len(prompts) == 10
    assert {p.prompt_id for p in prompts} == {f"sums:{i}@{e}" for i in range(5) for e in range(2)}
    assert all((p.label, p.metadata) == (int(p.prompt), {"level": int(p.prompt) % 3}) for p in prompts)
    assert [p.prompt for p in prompts[:5]] != [p.prompt for p in prompts[5:]], "each epoch has its own order"


@pytest.mark.parametrize("layout", ["train.jsonl", "train.parquet", "train-00000-of-00001.parquet", "data/train-0.parquet"])
def test_a_dataset_directory_is_read_by_split(tmp_path, layout):
    folder = tmp_path / "sums"
    write = write_jsonl if layout.endswith("jsonl") else write_parquet
    write(folder / layout, rows(4))
    write(folder / layout.replace("train", "test"), rows(2, "t"))
    assert {p.prompt for p in take_all(load_prompts(config(str(folder)), seed=0))} == {"0", "1", "2", "3"}
    held_out = take_all(load_prompts(config(str(folder), prompt_split="test"), seed=0))
    assert sorted(p.prompt_id for p in held_out) == ["sums:0@0", "sums:1@0"]


def test_parquet_keeps_message_lists(tmp_path):
    messages = [{"role": "user", "content": "1+1"}]
    stream = load_prompts(config(write_parquet(tmp_path / "chat.parquet", [{"input": messages, "answer": "2"}])), seed=0)
    assert stream.next().prompt == messages


def test_reasoning_gym_gives_question_answer_and_what_the_scorer_needs():
    import reasoning_gym

    spec = "reasoning-gym:chain_sum?size=6&seed=3&min_terms=2&max_terms=2&allow_negation=true"
    stream = load_prompts(DataConfig(prompt_dataset=(spec,)), seed=0)
    prompts = take_all(stream)
    assert sorted(p.prompt_id for p in prompts) == [f"chain_sum:{i}@0" for i in range(6)]
    for prompt in prompts:
        entry = prompt.metadata["entry"]
        assert prompt.metadata["source_dataset"] == "chain_sum" and entry["question"] == prompt.prompt
        assert prompt.metadata["options"] == {"size": 6, "seed": 3, "min_terms": 2, "max_terms": 2, "allow_negation": True}
        assert reasoning_gym.get_score_answer_fn("chain_sum")(prompt.label, entry) == 1.0


def test_option_values_get_their_type():
    assert [parse_value(t) for t in ("3", "-0.5", "true", "False", "easy", "[1,2]")] == [3, -0.5, True, False, "easy", [1, 2]]


def test_what_cannot_be_used_is_one_line_that_names_the_flag(tmp_path):
    good = write_jsonl(tmp_path / "a.jsonl", rows(3))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"input": 1}\n{oops\n')
    number = tmp_path / "number.jsonl"
    number.write_text("7\n")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"input": "\xff"}\n')
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000 + "\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.parquet").write_text("no parquet")
    cases = [
        (config(str(tmp_path / "none.jsonl")), "--data.prompt_dataset: .*none.jsonl does not exist"),
        (config(str(empty)), "--data.prompt_dataset: .* holds no prompt"),
        (config(str(tmp_path / "folder")), "--data.prompt_dataset: .* has no split 'train' .train.jsonl"),
        (config(str(broken), label_key=None), "broken.jsonl line 2 is not JSON"),
        (config(str(latin)), "latin.jsonl line 1 is not JSON: 'utf-8'"),
        (config(str(deep)), "deep.jsonl line 1 is not JSON"),
        (config(str(number)), "number.jsonl line 1 is not a JSON object"),
        (config(str(tmp_path / "bad.parquet")), "bad.parquet cannot be read as Parquet"),
        (config(good, input_key="question"), "--data.input_key: a.jsonl line 1 has no column 'question'; it has answer, input"),
        (DataConfig(prompt_dataset=(good,), label_key="gold"), "--data.label_key: a.jsonl line 1 has no column 'gold'"),
        (config("reasoning-gym:nope"), "--data.prompt_dataset: reasoning-gym:nope: Dataset 'nope' not registered"),
        (config("reasoning-gym:chain_sum?sise=3"), "sise"),
        (config(__file__), "neither .jsonl nor .parquet nor a dataset directory"),
    ]
    for data, message in cases:
        with pytest.raises(DataError, match=message) as error:
            load_prompts(data, seed=0)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"--eval\.dataset: nowhere does not exist"):
        load_prompts(config("nowhere"), seed=0, flag="eval.dataset")


def test_evaluation_sets_come_in_file_order_by_name(tmp_path):
    a, b = write_jsonl(tmp_path / "easy.jsonl", rows(4)), write_jsonl(tmp_path / "hard.jsonl", rows(2, "h"))
    data = config("never read", prompt_probs=(1.0,), max_samples=1)
    sets = load_eval_sets(EvalConfig(dataset=(a, b)), data)
    assert {n: [p.prompt for p in prompts] for n, prompts in sets.items()} == {"easy": ["0", "1", "2", "3"], "hard": ["h0", "h1"]}
    assert sets["easy"][3].prompt_id == "easy:3@0" and sets["easy"][3].label == 3
    assert [len(p) for p in load_eval_sets(EvalConfig(dataset=(a, b), max_samples=3), data).values()] == [2, 1]
    assert load_eval_sets(EvalConfig(), data) == {}
    with pytest.raises(DataError, match=r"--eval\.dataset: nowhere does not exist"):
        load_eval_sets(EvalConfig(dataset=("nowhere",)), data)


def test_sources_of_the_same_name_stay_apart(tmp_path):
    a = write_jsonl(tmp_path / "x" / "sums.jsonl", rows(2))
    b = write_jsonl(tmp_path / "y" / "sums.jsonl", rows(2))
    ids = {p.prompt_id for p in take_all(load_prompts(config(a, b), seed=0))}
    assert ids == {"sums:0@0", "sums:1@0", "sums.1:0@0", "sums.1:1@0"}


def test_max_samples_is_shared_by_weight():
    assert split_limit(10, [3, 4], ()) == [3, 4]
    assert split_limit(4, [3, 5], ()) == [2, 2]
    assert split_limit(10, [100, 100], (0.9, 0.1)) == [9, 1]
    assert split_limit(10, [2, 100], (0.9, 0.1)) == [2, 8]


def test_mixing_follows_the_weights_while_both_sources_last():
    drawn = np.array(list(draw_sources([3000, 3000], (0.8, 0.2), np.random.default_rng(0))))
    assert np.bincount(drawn).tolist() == [3000, 3000]
    assert abs((drawn[:2500] == 0).mean() - 0.8) < 0.03
    zero = list(draw_sources([2, 2], (1.0, 0.0), np.random.default_rng(0)))
    assert zero == [0, 0, 1, 1]


@st.composite
def streams(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    weights = draw(st.just(()) | st.lists(st.floats(0.1, 9), min_size=len(sizes), max_size=len(sizes)).map(tuple))
    seed, epochs = draw(st.integers(0, 99)), draw(st.integers(1, 3))
    sources = [Source(f"s{i}", [(f"{i}.{r}", None, {}) for r in range(size)]) for i, size in enumerate(sizes)]
    return lambda: PromptStream(sources, weights, seed, epochs)


@given(streams(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_cursor_resumes_the_unbroken_order_at_any_point(make, data):
    order = [p.prompt_id for p in take_all(make())]
    assert len(order) == len(set(order)) == sum(len(s.rows) for s in make().sources) * make().epochs, "each prompt once per epoch"
    cut = data.draw(st.integers(0, len(order)))
    first = make()
    for _ in range(cut):
        first.next()
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [p.prompt_id for p in take_all(second)] == order[cut:]
    assert [p.prompt_id for p in take_all(first)] == order[cut:]
    assert second.next() is None


def test_a_cursor_of_other_data_is_refused():
    def make(size, seed=1):
        return PromptStream([Source("s", [("x", None, {})] * size)], (), seed, 1)

    for other in (make(4), make(3, seed=2)):
        with pytest.raises(DataError, match="differ from the checkpoint's"):
            other.load_state_dict(make(3).state_dict())
