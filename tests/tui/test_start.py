"""What the first paint may load: the configuration tree and the option parser come when they are needed."""

import subprocess
import sys

SLOW = ("pydantic", "typer", "sqlite_utils", "engine.config", "molt_tui.slurm", "pyarrow", "numpy")


def test_the_first_paint_loads_nothing_slow():
    code = f"import sys, molt_tui.cli.screen, molt_tui.tui.app; print(*[m for m in {SLOW} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
