"""Launching by keyboard: recipe, changed fields, problems, sweeps, where, review, start once, relaunch."""

import threading
from dataclasses import replace

import pytest

from molt_tui.draft import Draft
from molt_tui.errors import MoltError
from molt_tui.tui.cluster_view import JobView
from molt_tui.tui.launch_view import Started
from molt_tui.tui.screens.cluster import ClusterScreen
from molt_tui.tui.screens.form import FormScreen
from molt_tui.tui.screens.launch import LaunchScreen
from molt_tui.tui.screens.review import PickRun, ReviewScreen
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.screens.stacks import StacksScreen
from molt_tui.tui.widgets.key_table import KeyTable
from tests.tui.fake_launch import NEW_RUN
from tests.tui.fake_source import RUNS, FakeSource

OWN_LINES = 5


def launches(driver):
    return [call[1] for call in driver.source.calls if call[0] == "launch"]


async def until_on(driver, kind):
    for _ in range(200):
        if isinstance(driver.app.screen, kind):
            return
        await driver.pilot.pause(0.02)
    raise AssertionError(f"no {kind.__name__}:\n{driver.text()}")


async def edit(driver, value):
    """Replace the value in the input that has the focus."""
    driver.app.focused.value = ""
    await driver.type(value)
    await driver.press("enter")


async def find(driver, text):
    await driver.press("slash")
    await driver.type(text)
    await driver.press("enter")


async def test_recipe_change_start(open_app):
    async with open_app() as driver:
        await driver.press("n")
        assert isinstance(driver.app.screen, LaunchScreen)
        assert "Sums and differences with a tiny MoE" in driver.text()
        await driver.press("enter")
        assert isinstance(driver.app.screen, FormScreen)
        await find(driver, "temperature")
        await driver.press("enter")
        assert "✔ no problem: ctrl+s starts it" in driver.text(), "opened, not changed"
        await edit(driver, "0.7")
        await driver.press("escape")
        assert "1 changed, no problem: ctrl+s starts it" in driver.text()
        assert "rollout.temperature" in driver.text().splitlines()[2 + OWN_LINES]
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("demo", changes={"rollout.temperature": "0.7"})]
        assert driver.app.screen.run_id == NEW_RUN
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_a_recipe_that_does_not_fit_says_so_in_the_list(open_app):
    async with open_app() as driver:
        await driver.press("n", "j")
        assert "▲ 1 GPU" in driver.text() and "here: needs 16 GPUs" in driver.text()
        assert "lower vllm.num_engines and actor.num_gpus_per_node" in " ".join(driver.text().split()), "nothing is cut"


async def test_a_recipe_of_ones_own_by_path(open_app):
    async with open_app() as driver:
        await driver.press("n", "f")
        await driver.type("~/mine.toml")
        await driver.press("escape", "f", "enter")
        await until_on(driver, FormScreen)
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("~/mine.toml")]


async def test_a_wrong_value_is_named_on_its_field_and_blocks_the_start(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", *"jjjjj", "enter")
        driver.app.focused.value = ""
        await driver.type("1e-x")
        assert "✖ --actor.adam.lr: expects number >= 0, got '1e-x'" in driver.text()
        assert "actor.adam.lr: enter keeps the value, esc leaves it" in driver.text()
        await driver.press("enter", "ctrl+s")
        assert launches(driver) == []
        assert "✖ not started: --actor.adam.lr: expects number" in driver.text()
        assert "✖ wrong" in driver.text()
        await driver.press("u")
        assert "no problem" in driver.text()


async def test_name_and_group_travel_with_the_launch(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "j", "j", "enter")
        await driver.type("try 1")
        await driver.press("enter", "j", "enter")
        await driver.type("g")
        await driver.press("enter", "g", "enter")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("demo", name="try 1", group="g")]


async def test_space_takes_the_next_of_a_short_list(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "vllm.dtype")
        await driver.press("space", "space")
        assert driver.app.screen.draft.changes == {"vllm.dtype": "float32"}


async def test_escape_leaves_one_level_at_a_time(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "slash")
        await driver.type("seed")
        assert len(driver.app.screen.query_one(KeyTable).rows) == 1
        await driver.press("escape")
        assert len(driver.app.screen.query_one(KeyTable).rows) == OWN_LINES + 8
        await driver.press(*"jjjjj", "enter", "escape")
        assert isinstance(driver.app.screen, FormScreen)
        await driver.press("escape")
        assert isinstance(driver.app.screen, LaunchScreen)
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_the_help_line_explains_the_highlighted_flag(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", *"jjjjj")
        assert "learning rate (can be changed while the run is live)" in driver.text()
        assert "default 1e-06" in driver.text()


async def test_a_failed_launch_stays_and_says_why(open_app):
    async with open_app() as driver:

        def refuse(draft):
            raise RuntimeError("this environment has no engine (ray, vllm, torch)")

        driver.source.launch = refuse
        await driver.press("n", "enter", "ctrl+s")
        await driver.wait_for("this environment has no engine")
        assert isinstance(driver.app.screen, FormScreen)


@pytest.mark.parametrize("place", ["local", "slurm"])
async def test_a_double_press_launches_once(open_app, place):
    async with open_app() as driver:
        answer, original = threading.Event(), driver.source.launch

        def slow(draft):
            answer.wait(10)
            return original(draft)

        driver.source.launch = slow
        await driver.press("n", "enter")
        if place == "slurm":
            await driver.press("o", "ctrl+s")
            await driver.wait_for("ctrl+s submits it")
        await driver.pilot.press("ctrl+s", "ctrl+s", "ctrl+s")
        if place == "slurm":
            await driver.press("escape")
            assert isinstance(driver.app.screen, ReviewScreen)
        answer.set()
        await until_on(driver, RunScreen)
        assert len(launches(driver)) == 1


async def test_a_sweep_with_seeds_is_a_group_and_reviewed_first(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "adam.lr")
        await driver.press("w")
        assert "sweep actor.adam.lr: values a,b or low..high" in driver.text()
        await edit(driver, "1e-4,1e-3")
        await driver.press("escape", "g", *"jjjj", "enter")
        await edit(driver, "3")
        assert "1 changed, no problem: ctrl+s shows 6 runs, then starts" in driver.text() and "run random" in driver.text()
        await driver.press("ctrl+s")
        assert isinstance(driver.app.screen, ReviewScreen) and launches(driver) == []
        assert "6 runs as group demo" in driver.text()
        await driver.press("tab")
        assert "demo-5" in driver.text()
        await driver.press("ctrl+s")
        await until_on(driver, RunsScreen)
        assert launches(driver) == [Draft("demo", sweeps={"actor.adam.lr": "1e-4,1e-3"}, seeds="3")]


async def test_a_wrong_value_of_a_sweep_and_seeds_that_are_no_number(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "adam.lr")
        await driver.press("w")
        await edit(driver, "1e-4,x")
        assert "got 'x'" in driver.text()
        await driver.press("u", "escape", "g", *"jjjj", "enter")
        await edit(driver, "many")
        assert "run seeds expects a whole number" in driver.text()
        await driver.press("G", "v")
        assert isinstance(driver.app.screen, FormScreen) and "✖ no review yet: run seeds expects" in driver.text()
        assert driver.app.screen.query_one(KeyTable).cursor_key == "seeds"


@pytest.mark.parametrize("key", ["v", "ctrl+s"])
async def test_what_is_wrong_is_one_enter_away(open_app, key):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "adam.lr")
        await driver.press("enter")
        await edit(driver, "fast")
        await driver.press("escape")
        await find(driver, "seed")
        await driver.press(key)
        table = driver.app.screen.query_one(KeyTable)
        assert isinstance(driver.app.screen, FormScreen) and table.cursor_key == "actor.adam.lr"
        assert len(table.rows) == OWN_LINES + 8, "the search gave way"
        word = "no review yet" if key == "v" else "not started"
        assert f"✖ {word}: --actor.adam.lr: expects number" in driver.text()
        await driver.press("enter")
        await edit(driver, "1e-3")
        assert "no problem" in driver.text()


@pytest.mark.parametrize("place", ["local", "slurm"])
async def test_valid_settings_are_reviewed_though_they_cannot_start_here(open_app, place):
    async with open_app() as driver:
        original = driver.source.form
        wrong = ("no runs_root is set", "--slurm.python: this environment has no engine")

        def form(draft):
            found = original(draft)
            fields = tuple(replace(f, problem="no engine") if f.flag == "slurm.nodes" else f for f in found.fields)
            return replace(found, fields=fields, problems=wrong)

        driver.source.form = form
        await driver.press("n", "enter", *(["o"] if place == "slurm" else []), "v")
        assert isinstance(driver.app.screen, ReviewScreen)
        text = driver.text()
        assert all(f"✖ {words}" in text for words in wrong) and "2 problems keep it from starting" in text
        assert "molt-tui launch demo" in text and "Start" not in text.splitlines()[-1]
        await driver.press("r", "ctrl+s")
        assert launches(driver) == [] and ("checks",) not in driver.source.calls
        for words in ("KV cache", "compared with demo", "+#SBATCH", "in no group") if place == "slurm" else ("compared with",):
            await driver.press("tab")
            assert words in driver.text()
        await driver.press("escape")
        assert driver.app.screen.query_one(KeyTable).cursor_key == "slurm.nodes"


async def test_on_slurm_everything_is_shown_before_the_submission(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "o")
        lines = driver.text().splitlines()
        assert lines[2 + OWN_LINES].startswith("slurm.partition") and "on Slurm" in lines[0]
        await find(driver, "slurm.nodes")
        await driver.press("enter")
        await edit(driver, "2")
        await driver.press("ctrl+s")
        await driver.wait_for("Slurm expects a start at Fri 03:10 on n[12-13]; ctrl+s submits it")
        assert "4 checkpoints need 180 GiB" in driver.text() and "trainer: 38.2 of 80 GiB" in driver.text()
        assert "molt-tui launch demo --slurm.nodes 2" in driver.text()
        for words in ("KV cache", "compared with demo", "+#SBATCH --nodes=2", "in no group"):
            await driver.press("tab")
            assert words in driver.text()
        await driver.press("t")
        assert "exec python -m slurm.job" in driver.text()
        assert launches(driver) == []
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("demo", "slurm", {"slurm.nodes": "2"})]


async def test_what_slurm_would_refuse_is_not_submitted(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "o")
        await find(driver, "slurm.nodes")
        await driver.press("enter")
        await edit(driver, "13")
        await driver.press("ctrl+s")
        await driver.wait_for("Slurm would refuse it")
        await driver.press("ctrl+s")
        assert launches(driver) == [] and "13 nodes are more than gpu gives one job" in driver.text()
        await driver.press("escape", "u", "ctrl+s")
        await driver.wait_for("ctrl+s submits it")


async def test_a_refusal_of_the_submission_is_shown_in_slurms_words(open_app):
    async with open_app() as driver:

        def refuse(draft):
            raise RuntimeError("Slurm refuses the job: Invalid qos specification")

        driver.source.launch = refuse
        await driver.press("n", "enter", "o", "ctrl+s")
        await driver.wait_for("ctrl+s submits it")
        await driver.press("ctrl+s")
        await driver.wait_for("✖ Slurm refuses the job: Invalid qos specification")
        assert isinstance(driver.app.screen, ReviewScreen)


async def test_a_submission_without_an_answer_is_shown_as_that(open_app):
    async with open_app() as driver:
        words = "sums-moe: no answer from Slurm (Socket timed out); its job is looked for and never submitted twice"
        driver.source.launch = lambda draft: Started((NEW_RUN,), (words,))
        driver.source.shown_job = JobView("alps", submission="unknown", said="Socket timed out")
        await driver.press("n", "enter", "o", "ctrl+s")
        await driver.wait_for("ctrl+s submits it")
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        await driver.wait_for("▲ alps gave no answer: the job is looked for, never submitted twice")
        assert words in driver.notices()


async def test_a_controller_that_is_down_is_asked_again_with_r(open_app):
    async with open_app() as driver:
        original = driver.source.checks

        def silent(draft):
            raise RuntimeError("Slurm does not answer: Unable to contact slurm controller")

        driver.source.checks = silent
        await driver.press("n", "enter", "o", "ctrl+s")
        await driver.wait_for("✖ Slurm does not answer")
        await driver.press("ctrl+s")
        assert launches(driver) == []
        driver.source.checks = original
        await driver.press("r")
        await driver.wait_for("ctrl+s submits it")


async def test_another_past_run_to_compare_with(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", "v")
        assert "compared with demo" in driver.text() and "agent.py: 2 lines added" in driver.text()
        await driver.press("d")
        await until_on(driver, PickRun)
        await driver.press("j", "enter")
        assert "compared with other" in driver.text()


@pytest.mark.parametrize("where", ["runs", "run", "cluster"])
async def test_r_relaunches_the_selected_run(open_app, where):
    async with open_app(run=RUNS[0].id if where == "run" else None) as driver:
        if where == "cluster":
            await driver.press("C")
            await until_on(driver, ClusterScreen)
            await driver.wait_for("sums-moe")
        await driver.press("r")
        await until_on(driver, FormScreen)
        await driver.settle()
        assert f"again, from {RUNS[0].id}" in driver.text()
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("demo", parent=RUNS[0].id)]


async def test_the_stack_dump_of_a_run(open_app):
    source = FakeSource()
    source.lines = [replace(RUNS[0], job_id="812")]
    async with open_app(source=source) as driver:
        await driver.press("S")
        await until_on(driver, StacksScreen)
        await driver.wait_for("File optim.py line 3 in step")
        assert ("stacks", RUNS[0].id) in driver.source.calls
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_a_start_takes_the_value_that_is_being_typed(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "temperature")
        await driver.press("enter")
        driver.app.focused.value = ""
        await driver.type("0.7")
        await driver.press("ctrl+s")
        await until_on(driver, RunScreen)
        assert launches(driver) == [Draft("demo", changes={"rollout.temperature": "0.7"})]


async def test_a_start_waits_for_what_the_newest_changes_mean(open_app):
    """A sweep is several runs, which are shown first, also where the key comes before the answer."""
    async with open_app() as driver:
        await driver.press("n", "enter")
        await find(driver, "temperature")
        answer, form = threading.Event(), driver.source.form
        driver.source.form = lambda draft: answer.wait(5) and form(draft)
        await driver.pilot.press("w", *"1,2", "enter", "ctrl+s")
        assert isinstance(driver.app.screen, FormScreen)
        answer.set()
        await until_on(driver, ReviewScreen)
        assert launches(driver) == []


@pytest.mark.parametrize("fails", [True, False])
async def test_a_launch_whose_form_was_left_is_told_all_the_same(open_app, fails):
    async with open_app() as driver:
        await driver.press("n", "enter")
        answer = threading.Event()

        def launch(draft):
            answer.wait(5)
            if fails:
                raise MoltError("the disk is full")
            return Started((NEW_RUN,))

        driver.source.launch = launch
        await driver.pilot.press("ctrl+s", "escape", "escape")
        answer.set()
        for _ in range(200):
            if driver.notices():
                break
            await driver.pilot.pause(0.02)
        assert ("the disk is full" if fails else f"{NEW_RUN} started") in driver.notices()


async def test_a_search_begins_with_the_flag_that_is_named_so(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", *"jjjjj", "slash")
        await driver.type("nodes")
        assert driver.app.screen.query_one(KeyTable).cursor_key == "slurm.nodes"
        await driver.press("escape")
        assert driver.app.screen.query_one(KeyTable).cursor_key == "slurm.nodes"


async def test_the_review_warns_of_more_runs_than_the_machine_has_cores_for(open_app):
    async with open_app() as driver:
        await driver.press("n", "enter", *"jjjj", "enter")
        await edit(driver, "3")
        await driver.press("ctrl+s")
        await driver.wait_for("▲ 3 runs start at once on this machine's 2 cores; ctrl+s starts 3 runs")
        assert launches(driver) == []
        await driver.press("ctrl+s")
        await until_on(driver, RunsScreen)
        assert [draft.seeds for draft in launches(driver)] == ["3"], "a warning does not keep it from starting"
