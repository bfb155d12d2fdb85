"""What the first paint may load: the configuration tree and the option parser come when they are needed."""

import subprocess
import sys

from molt_tui.tui.opened_later import OpenedLater

SLOW = ("pydantic", "typer", "sqlite_utils", "engine.config", "molt_tui.slurm", "pyarrow", "numpy")


def test_the_first_paint_loads_nothing_slow():
    code = f"import sys, molt_tui.cli.screen, molt_tui.tui.app; print(*[m for m in {SLOW} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


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
