"""A log for people: own and error lines stay, what libraries repeat is folded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.log_digest import LogLine, digest, kind_of
from molt_tui.scenarios.archive import load
from molt_tui.text import log_line

VLLM = "(VllmEngine pid=8963) WARNING 11-30 04:24:35 [vllm.py:709] Model Runner V2 requires Triton; using V1 instead."
CORE = "(VllmEngine pid=8963) (EngineCore pid=9948) WARNING 11-30 04:24:57 [vllm.py:709] Model Runner V2 requires Triton;"


def test_what_lines_are():
    assert kind_of("step 12 reward 0.3") == "own"
    assert kind_of("(Trainer pid=12) rank 0 holds 0.3 M parameters") == "own"
    assert kind_of("rollout failed: ConnectionError: refused") == "error"
    assert kind_of("(VllmEngine pid=1) ValueError: max_model_len is too small") == "error"
    assert kind_of("(VllmEngine pid=1) ERROR 11-30 04:24:35 [core.py:9] engine died") == "error"
    assert {kind_of(VLLM), kind_of(CORE), kind_of("Loading shards: 100% Completed | 1/1"), kind_of("  ")} == {"noise"}


def test_own_lines_and_errors_stay_and_the_rest_is_counted():
    lines = [VLLM, "step 1", VLLM, "ValueError: broken", CORE]
    assert digest(lines) == [LogLine("noise", "3 lines of vLLM, Ray and other libraries are folded; w shows them"),
                             LogLine("own", "step 1"), LogLine("error", "ValueError: broken")]  # fmt: skip


def test_all_lines_with_repeated_ones_folded_to_the_newest():
    later = VLLM.replace("04:24:35", "05:00:00").replace("8963", "77")
    assert digest([VLLM, "step 1", later], everything=True) == [LogLine("noise", later, 2), LogLine("own", "step 1")]
    assert digest(["step 1", "step 2", "step 2"], everything=True) == [LogLine("own", f"step {i}") for i in (1, 2, 2)]


def test_the_log_of_a_real_start_folds_to_nearly_nothing():
    lines = [log_line(i.payload.decode()) for i in load("healthy").items if i.action == "log"]
    assert len(digest(lines)) <= 3


@pytest.mark.parametrize(
    ("name", "words"), [("sick-engine", "engine-2"), ("routing-gaps", "engine-0"), ("nan-loss", "not finite")]
)
def test_a_recording_whose_verdict_points_to_the_log_has_it_there_from_the_onset_on(name, words):
    scenario = load(name)
    onset = next(i.t for i in scenario.items if i.action == "events" and i.payload.get("step") == scenario.onset)
    logged = [(i.t, log_line(i.payload.decode())) for i in scenario.items if i.action == "log"]
    told = [t for t, line in logged if words in line]
    assert told and min(told) >= onset - 0.01
    assert any(words in line.text for line in digest([line for _, line in logged]))


@given(st.lists(st.text(max_size=60), max_size=40))
def test_no_line_is_lost_with_all_shown(lines):
    shown = [line for line in lines if line.strip()]
    assert sum(item.count for item in digest(lines, everything=True)) == len(shown)
    folded = digest(lines)
    assert sum(item.kind != "noise" for item in folded) == sum(kind_of(line) != "noise" for line in shown)
