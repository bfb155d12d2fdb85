"""The whole program on a real terminal: sizes, no colour, a stalled link, a lost terminal, a killed process."""

import os
import random
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from tests.growing_run import GrowingRun
from tests.ptydrive import PtyProgram

MOLT = [sys.executable, "-m", "molt_tui"]
COLOUR = b"\x1b[38;"


@pytest.fixture
def home(tmp_path):
    return {"MOLT_TUI_HOME": str(tmp_path / "home")}


@pytest.fixture
def run(home):
    with GrowingRun(Path(home["MOLT_TUI_HOME"], "runs"), "grower") as growing:
        yield growing


@pytest.fixture
def screen(home, run):
    """The live dashboard of that run."""
    with PtyProgram(MOLT, home) as program:
        program.wait_for("grower")
        program.send("\r")
        program.wait_for("▶ running")
        yield program


def rows(home) -> int:
    connection = sqlite3.connect(f"file:{home['MOLT_TUI_HOME']}/molt.db?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute("SELECT count(*) FROM metric_rows").fetchone()[0]
    finally:
        connection.close()


def grows(home, beyond: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if rows(home) > beyond:
            return True
        time.sleep(0.2)
    return False


def leaves(screen) -> None:
    """It still answers: q ends it. The output is read on, since a full terminal holds every writer."""
    screen.send("q")
    end = time.monotonic() + 10
    while screen.process.poll() is None and time.monotonic() < end:
        screen.pump(0.1)
    assert screen.process.poll() == 0, screen.plain()[-300:]


def test_leaving_restores_the_terminal_and_says_what_goes_on(screen):
    leaves(screen)
    assert screen.output.rfind(b"\x1b[?1049l") > screen.output.rfind(b"\x1b[?1049h") >= 0
    assert "still running" in screen.plain()[-300:]


def test_without_colour_every_state_is_in_words(home):
    with PtyProgram(MOLT, {**home, "NO_COLOR": "1"}) as program:
        program.wait_for("no run yet", 20)
        program.pump(0.5)
        assert COLOUR not in program.output
        assert not re.search(rb"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-7](?:;\d+)*m", program.output)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_is_told_what_works(home, term):
    with PtyProgram(MOLT, {**home, "TERM": term}) as program:
        assert program.process.wait(20) == 2
        program.pump(0.3)
        assert b"\x1b" not in program.output
        assert "try `molt-tui runs`" in program.plain()


def test_lists_work_without_a_terminal_that_can_draw(home):
    with PtyProgram([*MOLT, "runs"], {**home, "TERM": "dumb"}) as program:
        assert program.process.wait(20) == 0
        program.pump(0.3)
        assert b"\x1b" not in program.output


def test_a_storm_of_sizes(screen):
    dice = random.Random(5)
    for _ in range(60):
        screen.resize((dice.randint(1, 220), dice.randint(1, 70)))
        screen.pump(0.02)
    screen.resize((80, 24))
    screen.pump(1.0)
    leaves(screen)


def stalled(screen, home, seconds: float) -> None:
    """Nobody reads the terminal while keys make it draw; the runs are ingested all the same, and the screen comes back."""
    before = rows(home)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.set_blocking(screen.main, False)
        try:
            screen.send("z\x1b")
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(screen.main, True)
        time.sleep(0.05)
    assert grows(home, before, 10)
    screen.pump(2.0)
    leaves(screen)


def test_a_stalled_link_does_not_stop_ingest(screen, home):
    stalled(screen, home, 4.0)


@pytest.mark.long
def test_a_link_stalled_for_twenty_seconds(screen, home):
    stalled(screen, home, 20.0)


def test_a_hang_up_ends_it_at_once(screen):
    began = time.monotonic()
    screen.process.send_signal(signal.SIGHUP)
    assert screen.process.wait(5) == 129
    assert time.monotonic() - began < 2


def test_a_termination_gives_the_terminal_back(screen):
    screen.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 10
    while screen.process.poll() is None and time.monotonic() < end:
        screen.pump(0.1)
    assert screen.process.poll() == 143
    screen.pump(0.2)
    assert screen.output.rfind(b"\x1b[?1049l") > screen.output.rfind(b"\x1b[?1049h") >= 0


def test_a_closed_terminal_ends_it_at_once(screen):
    began = time.monotonic()
    screen.close_terminal()
    assert screen.process.wait(5) in (129, 0)
    assert time.monotonic() - began < 2


def test_killed_then_opened_again(screen, home, run):
    screen.process.kill()
    screen.process.wait(5)
    with PtyProgram(MOLT, home) as program:
        program.wait_for("grower")
        program.send("\r")
        program.wait_for("▶ running")
        assert grows(home, rows(home), 10)
        leaves(program)


def test_a_terminal_that_is_too_small_says_so_and_can_be_left(home):
    with PtyProgram(MOLT, home, size=(40, 10)) as program:
        program.wait_for("have 40x10")
        leaves(program)


def test_bytes_that_are_no_text_do_not_end_it(home):
    with PtyProgram(MOLT, home) as program:
        program.wait_for("no run yet", 20)
        os.write(program.main, b"\xff\xfe\x9b2J\xe9\x1b[M\xff\xff\xff\x1b[999;999;999M\x1b[<0;9;9M")
        program.pump(1.0)
        leaves(program)
        assert "Traceback" not in program.plain()


def test_an_error_of_ours_is_one_line_and_its_traceback_goes_to_the_log(home):
    broken = "import molt_tui.tui.screens.runs as r\nr.RunsScreen.action_sort = lambda self: 1 / 0\n"
    code = broken + "from molt_tui.tui.app import run_app\nraise SystemExit(run_app())"
    with PtyProgram([sys.executable, "-c", code], home) as program:
        program.wait_for("no run yet", 20)
        program.send("s")
        program.pump(2.0)
        assert program.process.wait(10) == 1
        said = program.plain().rsplit("molt-tui: unexpected", 1)[1]
        assert "ZeroDivisionError; its traceback is in" in said and "Traceback" not in program.plain()
    assert "ZeroDivisionError" in (Path(home["MOLT_TUI_HOME"]) / "logs" / "tui.log").read_text()


def test_ctrl_s_on_the_way_out_does_not_hold_the_program(home):
    """The terminal takes it as "stop the output" again as soon as it is given back."""
    with PtyProgram(MOLT, home, size=(200, 60)) as program:
        program.wait_for("no run yet")
        program.send("q")
        end = time.monotonic() + 10
        while program.process.poll() is None and time.monotonic() < end:
            program.send("\x13")
            program.read(0.001)
        assert program.process.poll() == 0
