"""The Cluster screen by keyboard, and the job line of the Run screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.text import clean
from molt_tui.tui.cluster_view import ClusterView, JobView
from molt_tui.tui.screens import cluster as screen
from molt_tui.tui.screens.cluster import ClusterScreen
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.widgets.job_bar import job_lines
from tests.tui.fake_launch import CLUSTERS, JOB, NEW_RUN

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(screen.time, "time", lambda: NOW)
    monkeypatch.setattr(screen, "LEAST_S", 0.0)


async def opened(driver):
    await driver.press("C")
    await driver.wait_for("sums-moe")


async def test_partitions_jobs_and_their_runs(open_app):
    async with open_app() as driver:
        await opened(driver)
        text = driver.text()
        assert isinstance(driver.app.screen, ClusterScreen)
        assert "alps (1 of 2, ] next)" in text and "as of 10 s ago" in text
        assert "gpu *" in text and "h100 104/352" in text and "12 idle, 30 mixed, 2 down" in text
        assert "jobs of higher" in text and "starts 16:20" in text
        await driver.press("tab")
        assert "n07: DOWN NOT_RESPONDING disk" in driver.text()
        await driver.press("j")
        assert "every node of it is in service" in driver.text()
        await driver.press("tab", "enter")
        assert isinstance(driver.app.screen, RunScreen) and driver.app.screen.run_id == NEW_RUN
        await driver.press("escape", "escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_stop_asks_first_and_names_the_run(open_app):
    async with open_app() as driver:
        await opened(driver)
        await driver.press("j", "x")
        assert "Stop long-horizon?" in driver.text()
        await driver.press("y")
        for _ in range(100):
            await driver.pilot.pause(0.02)
            if driver.notices():
                break
        assert ("stop", "20270115-0900-long-55aa") in driver.source.calls


async def test_another_cluster_is_shown_as_last_seen(open_app):
    async with open_app() as driver:
        await opened(driver)
        await driver.press("right_square_bracket")
        text = driver.text()
        assert "old (2 of 2" in text and "a100 4/8" in text and "as it was last seen from here" in text
        assert "as of 03 Jan 18:13" in text
        await driver.press("right_square_bracket")
        assert "sums-moe" in driver.text()


async def test_a_controller_that_is_down(open_app):
    async with open_app() as driver:
        await opened(driver)
        driver.source.shown_clusters = (replace(CLUSTERS[0], answered=NOW - 900, error="Unable to contact slurm controller"),)
        await driver.refresh()
        await driver.wait_for("✖ Unable to contact slurm controller")
        assert "as of 15 m ago" in driver.text() and "sums-moe" in driver.text()
        driver.source.shown_clusters = (ClusterView("", error="sinfo is not installed here; run this on a login node"),)
        await driver.refresh()
        await driver.wait_for("sinfo is not installed here")
        assert "nothing known" in driver.text()


async def test_a_slow_controller_is_asked_one_question_at_a_time(open_app):
    async with open_app() as driver:
        await opened(driver)
        asked = []
        driver.source.clusters = lambda: asked.append(1) or CLUSTERS
        driver.app.screen.asking = True
        await driver.refresh()
        await driver.refresh()
        assert asked == []


def lines(view: JobView) -> str:
    return "\n".join(line.plain for line in job_lines(view, NOW))


def test_the_job_line_in_every_state_of_a_submission():
    assert lines(JOB) == "job 81299 on alps: jobs of higher priority come first; expected start 16:20"
    unknown = JobView("alps", submission="unknown", said="Socket timed out")
    assert lines(unknown).startswith("▲ alps gave no answer: the job is looked for")
    refused = JobView("alps", submission="refused", said="Invalid qos")
    assert lines(refused) == "✖ alps refused the job: Invalid qos"
    assert "p submits it again" in lines(JobView("alps", submission="absent"))
    running = JobView("alps", "7", "submitted", "", "RUNNING", node_list="n[1-2]", end=NOW + 3600, answered=NOW,
                      forecast="at this pace step 400 at 10:10, limit 09:00 (step 361), last checkpoint 340", enough=False,
                      attempts=((1, "timeout", 200), (2, "", None)))  # fmt: skip
    assert lines(running) == (
        "job 7 on alps: n[1-2], until 09:00\n"
        "at this pace step 400 at 10:10, limit 09:00 (step 361), last checkpoint 340   attempts 1 timeout at 200, 2 running"
    )
    over = replace(running, state="TIMEOUT", words="the job reached its time limit", forecast="")
    assert lines(over).startswith("job 7 on alps: the job reached its time limit on n[1-2]\n")
    assert "(Slurm does not answer since 08:00)" in lines(replace(running, error="down"))
    assert "(as of 07:50)" in lines(replace(running, answered=NOW - 600))


@given(st.builds(JobView, *[st.text().map(clean)] * 7))
def test_any_words_of_slurm_can_be_shown(view):
    assert all(line.plain == clean(line.plain) for line in job_lines(view, NOW))


async def test_the_job_line_is_there_for_a_slurm_run_only(open_app):
    async with open_app(run=NEW_RUN) as driver:
        assert not driver.app.screen.query_one("#job").display
    from tests.tui.fake_source import FakeSource

    source = FakeSource()
    source.shown_job = JOB
    async with open_app(run=NEW_RUN, source=source) as driver:
        await driver.wait_for("job 81299 on alps: jobs of higher priority")
        assert "balanced" in driver.text()
