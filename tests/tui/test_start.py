"""What the first paint may cost: modules, style and widgets come when they are needed, and a slow disk holds up only the rows."""

import subprocess
import sys
import threading

import pytest
from textual.css.stylesheet import Stylesheet

from molt_tui.tui import app as molt_app
from molt_tui.tui.app import MoltApp
from molt_tui.tui.opened_later import OpenedLater
from tests.ptydrive import PtyProgram
from tests.tui.conftest import Driver
from tests.tui.fake_source import FakeSource

SLOW = ("pydantic", "typer", "sqlite_utils", "sqlite3", "tomllib", "engine.config", "molt_tui.slurm", "molt_tui.facts",
        "molt_tui.verdict", "molt_tui.services", "molt_tui.tui.keymap", "pyarrow", "numpy")  # fmt: skip
FIRST_SCREENS = {"base", "controls", "dialogs", "marks", "runs"}
SLOW_DISK = """
import sys, threading
from molt_tui.tui import app
app._open_store = lambda *_: threading.Event().wait()
from molt_tui.cli import main
sys.exit(main([]))
"""


def test_the_first_paint_loads_nothing_slow():
    code = f"import sys, molt_tui.cli.screen, molt_tui.tui.app; print(*[m for m in {SLOW} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_first_paint_loads_no_screen_but_its_own():
    code = "import sys, molt_tui.tui.app; print(*[m.split('.')[3] for m in sys.modules if m.startswith('molt_tui.tui.screens.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == FIRST_SCREENS


class Disk:
    """A store that opens when the test lets it."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.source = OpenedLater(self._open)

    def _open(self) -> FakeSource:
        assert self.ready.wait(60)
        return FakeSource()


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.ready.set()  # lets the waiting threads go


async def test_the_first_frame_is_whole_without_the_store(disk, monkeypatch):
    parsed_again, frames = [], []
    monkeypatch.setattr(Stylesheet, "reparse", lambda self: parsed_again.append(self))
    app = MoltApp(disk.source, interval_s=3600.0)
    monkeypatch.setattr(app, "post_display_hook", lambda: frames.append(Driver(app, None, None).text()))
    async with app.run_test(size=(80, 24)):
        top, heads, *body = frames[0].splitlines()
        assert top.strip() == "molt-tui"
        assert heads.split() == ["State", "Name", "Step", "Reward", "Trend", "Age", "Alert/tag"]
        assert "reading runs ..." in "\n".join(body)
        names = [type(node).__name__ for node in app.screen.children]
        assert names == ["Static", "KeyTable", "Static", "Input", "Static", "KeyFooter"]
        assert [path for path, _ in app.stylesheet.source if path.endswith(".tcss")] == [str(app.css_path[0])]
    assert parsed_again == []


async def test_keys_before_the_rows_are_not_lost(disk):
    app = MoltApp(disk.source, interval_s=3600.0)
    async with app.run_test(size=(80, 24)) as pilot:
        driver = Driver(app, pilot, None)
        await pilot.press("s", "slash", *"state:failed", "enter")
        assert "reading runs ..." in driver.text()
        disk.ready.set()
        await driver.wait_for("1 of")
        await driver.settle()
        assert "by state" in driver.text() and app.screen.selected.state == "failed"


async def test_one_can_leave_while_the_disk_hangs(disk, monkeypatch):
    monkeypatch.setattr(molt_app, "LEAVE_S", 0.01)
    app = MoltApp(disk.source, interval_s=3600.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
    assert app.return_code == 0 and not app.return_value


def test_on_a_terminal_keys_typed_before_the_first_frame_act(tmp_path):
    with PtyProgram([sys.executable, "-c", SLOW_DISK], {"MOLT_TUI_HOME": str(tmp_path)}) as program:
        program.send("?")
        program.wait_for("Closing molt-tui changes nothing")
        program.send("q")  # closes the help
        program.wait_for("reading runs")
        program.send("q")
        assert program.process.wait(20) == 0


def test_a_source_is_opened_by_the_first_call_and_once():
    opened = []

    class Real:
        def runs(self):
            return ["r"]

    def open_it():
        opened.append(1)
        return Real()

    source = OpenedLater(open_it)
    ask = source.runs
    assert opened == []
    assert ask() == source.runs() == ["r"]
    assert opened == [1]
