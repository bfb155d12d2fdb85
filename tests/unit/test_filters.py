"""The filter language: every field against plain Python, errors with their place, and nothing that raises anything else."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.filters import EXAMPLES, FIELDS, STATES, FilterError, parse

NOW = 1_000_000.0


@dataclass
class Some:
    id: str = "20270115-sums-a1"
    name: str = "sums moe"
    state: str = "running"
    group: str | None = "seeds"
    recipe: str = "demo"
    tags: tuple[str, ...] = ("moe", "r3")
    job_id: str | None = "81234"
    host: str = "node-a"
    note: str = "look at [step 3]"
    alert: str = "generation-bound"
    step: int | None = 142
    version: int | None = 140
    attempts: int = 2
    reward: float | None = 0.53
    created: float = NOW - 86400
    since: float | None = field(default=90.0)

    def age(self, now: float) -> float | None:
        return self.since


def holds(text: str, **changes) -> bool:
    return parse(text).matches(Some(**changes), NOW)


@pytest.mark.parametrize(
    "text",
    ["", "state:running", "state:active", "state:failed,running", "-state:failed", "!failed", "MOE", '"sums moe"', "tag:moe",
     "tag:m*", "group:seeds", "recipe:demo", "reward:>0.5", "reward:0.5..0.6", "reward:<=0.53", "reward:=0.53", "reward:0.53",
     "step:!=3", "age:<2d", "age:>1m", "created:1d", "job:81234", "host:node", "note:[step", "name:*moe", "id:2027",
     "alert:bound", "attempts:>1", "version:>=140", "-tag:none",
     'state:running tag:moe -group:"other one" sums', 'name:"sums moe"',
     "81234", "generation"],
)  # fmt: skip
def test_terms_that_hold(text):
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    ["state:failed", "-state:running", "state:ended", "tag:mo", "group:seed", "recipe:dem", "reward:>0.53", "reward:none",
     "reward:nan", "age:>2d", "nothing", "sums -moe", "note:s?ep", "step:none", "tag:none"],
)  # fmt: skip
def test_terms_that_do_not_hold(text):
    assert not holds(text)


def test_what_is_not_reported_is_in_no_range_and_nan_equals_only_nan():
    assert holds("reward:none", reward=None) and not holds("reward:<1", reward=None) and not holds("reward:!=1", reward=None)
    assert holds("reward:nan", reward=math.nan) and not holds("reward:<1", reward=math.nan)
    assert holds("reward:inf", reward=math.inf) and holds("age:none", since=None)
    assert holds("tag:none group:none job:none", tags=(), group=None, job_id=None)
    assert holds("cancelled state:cancelled", state="cancelled")


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [("sums foo:1", 5, "no field 'foo'"), ("-foo:1", 1, "no field"), ("reward:", 7, "reward:>0.5"), ("reward:>abc", 8, "'abc'"),
     ("tag:a,,b", 6, "comma"), ("age:<2y", 5, "duration"), ('a "b c', 2, "not closed"), ("state:runing", 6, "running"),
     ("reward:1..", 10, "number"), ('""', 0, "quotes"), ("tiny:qwen3", 0, 'write "tiny:qwen3"')],
)  # fmt: skip
def test_errors_say_where_and_what_to_write(text, position, words):
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.position == position and words in str(caught.value) and "\n" not in str(caught.value)


def test_only_ages_depend_on_the_clock():
    assert parse("-age:<2d").by_time and parse("created:>1h").by_time and not parse("age state:running").by_time


@pytest.mark.parametrize("name", FIELDS)
def test_every_example_is_a_filter(name):
    parse(f"{name}:{EXAMPLES[name]}")


PIECES = st.sampled_from([*FIELDS, *STATES, ":", ",", '"', "-", "!", " ", "*", "..", ">=", "0.5", "2d", "nan", "none", "[", "?"])


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)), st.text(max_size=5), st.floats() | st.none())
def test_any_text_is_a_filter_or_an_error_inside_it(text, name, reward):
    try:
        parse(text).matches(Some(name=name, reward=reward), NOW)
    except FilterError as error:
        assert 0 <= error.position <= len(text)


WORDS = st.text(st.characters(exclude_characters='"', exclude_categories=["Z", "C"]), min_size=1)


@given(WORDS, WORDS)
def test_a_quoted_word_is_looked_for_as_it_is(word, name):
    subject = Some(name=name)
    shown = (name, subject.id, subject.state, subject.group, subject.recipe, *subject.tags, subject.job_id, subject.host,
             subject.alert)  # fmt: skip
    assert parse(f'"{word}"').matches(subject, NOW) == any(word.lower() in part.lower() for part in shown)


@given(st.sampled_from(sorted(EXAMPLES)), st.floats() | st.none(), st.integers(0, 5))
def test_a_minus_is_the_opposite_and_terms_are_joined_by_and(name, reward, attempts):
    subject, term = Some(reward=reward, attempts=attempts), f"{name}:{EXAMPLES[name]}"
    here = parse(term).matches(subject, NOW)
    assert parse(f"-{term}").matches(subject, NOW) is not here
    assert parse(f"{term} attempts:{attempts}").matches(subject, NOW) is here


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats())
def test_comparisons_are_those_of_floats(wanted, reward):
    subject = Some(reward=reward)
    for sign, truth in ((">", reward > wanted), ("<=", reward <= wanted), ("=", reward == wanted)):
        assert parse(f"reward:{sign}{wanted!r}").matches(subject, NOW) is truth
