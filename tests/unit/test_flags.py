"""Dotted flags, TOML and the round trip of the configuration tree."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import flags
from engine.config import LIVE_KNOBS, Config
from engine.flags import changed_fields, flag_table, parse_overrides, resolve, to_toml


def setting(words: str, recipe: dict | None = None):
    """The changed fields and problems of a command line."""
    overrides, problems = parse_overrides(words.split())
    config, more = resolve(recipe or {}, overrides)
    return changed_fields(config), problems + more


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--algo.advantage.estimator grpo", {"algo.advantage.estimator": "grpo"}),
        ("--train.max_steps=7", {"train.max_steps": 7}),
        ("--train.routing_replay", {"train.routing_replay": True}),
        ("--train.routing_replay true --train.partial_rollout_enable false",
         {"train.routing_replay": True, "train.partial_rollout_enable": False}),
        ("--actor.eps_clip_low_high 0.2 0.28", {"actor.eps_clip_low_high": (0.2, 0.28)}),
        ("--actor.eps_clip_low_high 0.2,0.28", {"actor.eps_clip_low_high": (0.2, 0.28)}),
        ("--reward.clip_range -1 1", {"reward.clip_range": (-1.0, 1.0)}),
        ("--algo.advantage.is_correction_threshold 5e-3", {"algo.advantage.is_correction_threshold": (0.005,)}),
        ("--data.prompt_dataset a.jsonl,b.jsonl --data.prompt_dataset c.jsonl",
         {"data.prompt_dataset": ("a.jsonl", "b.jsonl", "c.jsonl")}),
        ("--slurm.env=A=1,2 --slurm.extra=--mail-type=END", {"slurm.env": ("A=1,2",), "slurm.extra": ("--mail-type=END",)}),
        ("--train.seed 1 --train.seed 2", {"train.seed": 2}),
        ("--data.label_key answer --data.label_key none", {}),
        ("--vllm.enable_chunked_prefill", {"vllm.enable_chunked_prefill": True}),
    ],
)  # fmt: skip
def test_values(words, changed):
    assert setting(words) == (changed, [])


def test_an_override_beats_the_recipe_and_none_removes_its_value():
    recipe = {"train": {"max_steps": 5, "seed": 1}}
    assert setting("--train.max_steps none --train.seed 2", recipe) == ({"train.seed": 2}, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--estimator grpo", "--estimator: unknown flag; did you mean algo.advantage.estimator or algo.kl.estimator"),
        ("--eval.temprature 1", "did you mean eval.temperature"),
        ("--data.max-len 9", "did you mean data.max_len"),
        ("--rollout.n_samples 4", "did you mean rollout.n_samples_per_prompt"),
        ("--algo.advantage grpo", "is a section, not a value; its settings are algo.advantage.estimator,"),
        ("--zzz 1", "unknown flag; `flags` lists all"),
        ("--algo.advantage.estimator gpro", "got 'gpro'; did you mean grpo?"),
        ("--train.seed", "--train.seed: expects an integer from 0 to 2147483647, got nothing"),
        ("--train.seed 1 2", "expects an integer from 0 to 2147483647, got '1 2'"),
        ("--train.seed -1", "got -1"),
        ("--train.seed 2147483648", "got 2147483648"),
        ("--train.max_staleness 65", "expects an integer from 0 to 64, got 65"),
        ("--data.prompt_probs 1 0", "expects a list of numbers > 0, got [1.0, 0.0]"),
        ("--rollout.top_p 1.5", "expects a number > 0 and <= 1, got 1.5"),
        ("--vllm.gpu_memory_utilization 0", "expects a number > 0 and <= 1, got 0.0"),
        ("--actor.adam.betas 0.9 1", "expects 2 numbers >= 0 and < 1, got [0.9, 1.0]"),
        ("--actor.dual_clip 1", "expects a number > 1 or none, got 1.0"),
        ("--actor.entropy_coef -0.1", "expects a number >= 0 or none, got -0.1"),
        ("--rollout.batch_size 0", "expects an integer >= 1, got 0"),
        ("--train.max_steps 1.5", "expects an integer >= 1 or none, got '1.5'"),
        ("--eval.steps none", "expects an integer, got 'none'"),
        ("--actor.adam.lr nan", "expects a number >= 0, got nan"),
        ("--reward.clip_range 1", "expects 2 numbers, got [1.0]"),
        ("--trace.rollouts_per_step 65", "expects an integer from 0 to 64, got 65"),
        ("--train.routing_replay maybe", "expects true or false, got 'maybe'"),
        ("demo2 --train.seed 3", "unexpected 'demo2'"),
    ],
)
def test_refusals_say_what_to_change(words, message):
    _, problems = setting(words)
    assert len(problems) == 1 and message in str(problems[0])


def test_every_problem_is_reported_at_once():
    recipe = {"train": {"bach_size": 2, "seed": "3"}, "fsdp": 3, "data": {"max_len": {"a": 1}}, "eval": {"eval_at_end": 1}}
    _, problems = setting("--x.y 1 --actor.adam.lr fast --train.max_steps 0", recipe)
    blamed = {p.flag for p in problems}
    assert blamed == {"train.bach_size", "train.seed", "fsdp", "data.max_len", "eval.eval_at_end", "x.y", "actor.adam.lr",
                      "train.max_steps"}  # fmt: skip


def test_toml_types_are_not_bent():
    _, problems = setting("", {"train": {"max_steps": "12", "routing_replay": "true"}, "data": {"max_len": 8.0}})
    assert {p.flag for p in problems} == {"train.max_steps", "train.routing_replay", "data.max_len"}


def test_text_that_is_no_unicode_is_refused():
    assert "expects text" in str(resolve({}, {"recipe.title": ["\udc80"]})[1][0])


def test_toml_syntax_errors_name_the_line(tmp_path):
    (tmp_path / "x.toml").write_text("[train]\nseed = 1\nmax_steps 3\n")
    _, problems = flags.read_toml(tmp_path / "x.toml")
    assert "line 3" in str(problems[0]) and "x.toml" in str(problems[0])
    (tmp_path / "y.toml").write_bytes(b"\xff")
    assert "UTF-8" in str(flags.read_toml(tmp_path / "y.toml")[1][0])
    assert "No such file" in str(flags.read_toml(tmp_path / "z.toml")[1][0])


def test_the_table_describes_every_flag():
    table = flag_table()
    assert list(table) == [path for path, _ in flags.flatten(Config())]
    assert all(info.help for info in table.values())
    assert {path for path, info in table.items() if info.live} == set(LIVE_KNOBS)
    # None is left out of run.toml, which only works when None is also the default.
    assert all(info.default is None for info in table.values() if info.optional)
    assert table["train.max_steps"].type == "an integer >= 1 or none"
    assert table["actor.lr_scheduler"].choices == ("constant", "linear", "cosine")
    assert table["data.prompt_dataset"].length == 0 and table["reward.clip_range"].length == 2


NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = {
    "recipe.title": TEXT,
    "data.label_key": st.none() | TEXT,
    "data.prompt_dataset": st.lists(TEXT, max_size=3).map(tuple),
    "data.prompt_probs": st.lists(st.floats(0, 1e300, exclude_min=True), max_size=3).map(tuple),
    "reward.clip_range": st.tuples(NUMBER, NUMBER),
    "actor.adam.lr": st.floats(0, 1e300),
    "train.seed": st.integers(0, 2**31 - 1),
    "train.max_steps": st.none() | st.integers(1, 2**40),
    "train.routing_replay": st.booleans(),
    "vllm.enable_chunked_prefill": st.none() | st.booleans(),
    "fsdp.param_dtype": st.sampled_from(["fp32", "bf16"]),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_run_toml_round_trip(tmp_path_factory, values):
    config, problems = flags._build(values)
    assert problems == []
    path = tmp_path_factory.mktemp("toml") / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert flags.load_run_toml(path) == config


@given(st.fixed_dictionaries({}, optional={k: v for k, v in VALUES.items() if k not in ("recipe.title", "data.label_key",
                                                                                         "data.prompt_dataset")}))  # fmt: skip
def test_flags_round_trip(values):
    """What a form writes as words comes back as the same values."""

    def words(value) -> list[str]:
        if value is None:
            return ["none"]
        return [str(v).lower() if isinstance(v, bool) else str(v) for v in (value if isinstance(value, tuple) else (value,))]

    config, problems = resolve({}, {path: words(value) or [""] for path, value in values.items()})
    assert problems == [] and config == flags._build(values)[0]


def test_load_run_toml_refuses_a_damaged_file(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nsede = 3\n")
    with pytest.raises(ValueError, match=r"run\.toml: --train\.sede: unknown key"):
        flags.load_run_toml(tmp_path / "run.toml")


def test_infinities_are_refused_everywhere():
    for info in flag_table().values():
        if info.kind == "float":
            _, problems = resolve({}, {info.path: [str(math.inf)] * max(1, info.length or 1)})
            assert [p.flag for p in problems] == [info.path]
