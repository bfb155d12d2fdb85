"""Sweeps: axes from text, grids, draws, names; and what a plan makes of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.errors import Refused
from molt_tui.services import launch
from molt_tui.services.sweep import MAX_RUNS, Axis, expand, label, parse_axis
from molt_tui.store.home import Home

FLAGS = ("actor.adam.lr", "train.max_staleness", "rollout.temperature", "train.seed")


def axes_strategy():
    values = st.lists(st.integers(0, 99).map(str), min_size=1, max_size=5, unique=True).map(tuple)
    return st.lists(st.sampled_from(FLAGS), min_size=1, max_size=3, unique=True).flatmap(
        lambda flags: st.tuples(*(values.map(lambda v, f=f: Axis(f, v)) for f in flags))
    )


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("actor.adam.lr=1e-6, 1e-5,1e-6", ("1e-6", "1e-5")),
        ("--train.max_staleness=0,2", ("0", "2")),
        ("actor.adam.betas=0.9,0.95|0.9,0.99", ("0.9,0.95", "0.9,0.99")),
        ("algo.advantage.estimator=grpo,rloo", ("grpo", "rloo")),
        ("train.agent_path=a..b", ("a..b",)),
    ],
)
def test_listed_values(spec, values):
    assert parse_axis(spec).values == values


def test_ranges():
    assert parse_axis("train.max_staleness=1..4").listed() == ["1", "2", "3", "4"]
    assert parse_axis("actor.adam.lr=log:1e-6..1e-4") == Axis("actor.adam.lr", (), 1e-6, 1e-4, log=True)
    assert parse_axis("rollout.temperature=0.5..1").size is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("actor.adam.lr", "FLAG=VALUES"),
        ("actor.adam.lr=", "FLAG=VALUES"),
        ("actor.adam.lr=,", "at least one value"),
        ("actor.adam.lrr=1", "did you mean actor.adam.lr"),
        ("rollout.temperature=1..0.5", "smaller to a larger"),
        ("actor.adam.lr=log:0..1", "above 0"),
        ("train.max_staleness=0.5..2", "whole numbers"),
    ],
)
def test_a_wrong_axis_says_what_to_write(spec, words):
    with pytest.raises(Refused, match=words):
        parse_axis(spec)


@given(axes_strategy())
def test_a_grid_holds_every_combination_once(axes):
    size = math.prod(len(axis.values) for axis in axes)
    if size > MAX_RUNS:
        with pytest.raises(Refused, match=f"{size} runs"):
            expand(axes)
        return
    grid = expand(axes)
    assert len({tuple(c.items()) for c in grid}) == len(grid) == size
    assert all(c[axis.flag] in axis.values for c in grid for axis in axes)
    assert len({label(c, [a.flag for a in axes]) for c in grid}) == size


@given(axes_strategy(), st.integers(1, MAX_RUNS), st.integers(1, MAX_RUNS))
def test_draws_are_distinct_and_a_larger_number_begins_with_a_smaller(axes, few, many):
    few, many = sorted((few, many))
    size = math.prod(len(axis.values) for axis in axes)
    less, more = expand(axes, few), expand(axes, many)
    assert len({tuple(c.items()) for c in more}) == len(more) == min(many, size)
    assert more[: len(less)] == less == expand(axes, few)


@given(st.floats(1e-9, 1e3), st.floats(1.01, 1e6), st.booleans(), st.integers(1, 20))
def test_draws_stay_in_their_range(low, factor, log, count):
    axis = Axis("actor.adam.lr", (), low, low * factor, log)
    assert all(low <= float(c["actor.adam.lr"]) <= low * factor for c in expand([axis], count))


def test_what_makes_no_sense_together():
    lr = parse_axis("actor.adam.lr=1e-6,1e-5")
    for axes, samples, words in (([lr, lr], None, "given twice"), ([], 3, "add --sweep"),
                                 ([parse_axis("actor.adam.lr=0..1")], None, "--random N")):  # fmt: skip
        with pytest.raises(Refused, match=words):
            expand(axes, samples)
    with pytest.raises(Refused, match="66 runs, at most 64"):
        expand([parse_axis("train.max_staleness=1..33")], runs_each=2)


def test_names_are_short_but_tell_apart():
    flags = ["actor.adam.lr", "critic.adam.lr", "train.seed"]
    assert label(dict(zip(flags, "123")), flags) == "actor.adam.lr=1,critic.adam.lr=2,seed=3"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "runs")


def test_a_plan_of_a_sweep_with_seeds(home):
    plan = launch.make_plan(home, "demo", ["--train.max_steps", "5"], seeds=2, axes=[parse_axis("actor.adam.lr=1e-4,1e-3")])
    assert plan.group == "demo"
    assert [run.name for run in plan.runs] == ["demo-lr=1e-4-s42", "demo-lr=1e-4-s43", "demo-lr=1e-3-s42", "demo-lr=1e-3-s43"]
    last = plan.runs[-1]
    assert (last.config.actor.adam.lr, last.config.train.seed, last.config.train.max_steps) == (1e-3, 43, 5)
    assert plan.command_of(last) == ["molt-tui", "launch", "demo", "--train.max_steps", "5", "--actor.adam.lr=1e-3",
                                     "--train.seed=43"]  # fmt: skip


def test_every_combination_is_validated_before_anything_starts(home):
    with pytest.raises(Refused) as refusal:
        launch.make_plan(home, "demo", [], axes=[parse_axis("train.max_staleness=1,-1,100")])
    assert str(refusal.value).splitlines() == [
        "--train.max_staleness: expects an integer from 0 to 64, got -1",
        "--train.max_staleness: expects an integer from 0 to 64, got 100",
    ]
    assert not home.runs_root.exists()


def test_a_flag_is_set_or_swept(home):
    axes = [parse_axis("train.seed=1,2")]
    with pytest.raises(Refused, match="swept and set"):
        launch.make_plan(home, "demo", ["--train.seed", "3"], axes=axes)
    with pytest.raises(Refused, match="--seeds counts it up"):
        launch.make_plan(home, "demo", [], axes=axes, seeds=2)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("values", ["1..1000000000", "1..1e300"])
def test_a_huge_range_of_whole_numbers_is_drawn_from_and_never_listed(values):
    drawn = expand([parse_axis(f"train.max_steps={values}")], 4)
    assert len({row["train.max_steps"] for row in drawn}) == 4
    with pytest.raises(Refused, match="billions of runs"):
        expand([parse_axis(f"train.max_steps={values}"), parse_axis("train.seed=0..1000")])


@pytest.mark.timeout(10)
@pytest.mark.parametrize("spec", ["actor.adam.lr=" + "1" * 200_000, "x" * 200_000 + "=1", "actor.adam.lr=-1e308..1e308"])
def test_a_pasted_book_is_refused_or_taken_at_once(spec):
    try:
        assert parse_axis(spec).size == 1
    except Refused as error:
        assert len(str(error)) < 300
