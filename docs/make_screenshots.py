"""Pictures for the README from the recorded healthy run: `python -m docs.make_screenshots` writes docs/images/*.svg."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from molt_tui.errors import MoltError
from molt_tui.services import demo
from molt_tui.store.home import Home
from molt_tui.tui.app import MoltApp
from molt_tui.tui.cluster_view import ClusterView
from molt_tui.tui.screens import cluster
from molt_tui.tui.store_source import StoreSource
from tests.tui.fake_launch import CLUSTERS

IMAGES = Path(__file__).parent / "images"
STEP, NOW = 100, 1_800_000_000.0
CHANGE_LR = ["n", "enter", "slash", *"adam.lr", "enter", "enter", "ctrl+u", *"5e-7", "enter", "escape"]
SHOTS = {
    "runs": ((80, 24), []),
    "run": ((80, 24), ["enter"]),
    "run-wide": ((150, 42), ["enter"]),
    "tokens": ((80, 24), ["enter", "t", "a", "enter", "e"]),
    "launch": ((80, 24), CHANGE_LR),
    "review": ((80, 24), [*CHANGE_LR, "v"]),
    "past": ((80, 24), ["enter", *["left_square_bracket"] * 3]),
    "traces": ((80, 24), ["enter", "t"]),
    "compare": ((80, 24), ["space", "j", "space", "v"]),
    "query": ((80, 24), ["Q", "ctrl+r"]),
    "cluster": ((80, 24), ["C"]),
    "help": ((80, 24), ["enter", "question_mark"]),
}


class Shown(StoreSource):
    """Everything real but the cluster, which a machine without Slurm does not have."""

    def clusters(self) -> Sequence[ClusterView]:
        return CLUSTERS


def play_until(source: StoreSource, home: Home, step: int) -> str:
    """A run with a sickness that is over and, beside it, a healthy one at a step; returns the latter's id."""
    demo.start(home, "entropy-collapse", speed=500.0)
    run_id = demo.start(home, "healthy", speed=5.0)
    while True:
        source.ingest()
        line = next(r for r in source.runs() if r.id == run_id)
        if (line.step or 0) >= step:
            return run_id
        time.sleep(0.05)


async def take(source: StoreSource) -> None:
    cluster.time = SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic)
    for name, (size, keys) in SHOTS.items():
        app = MoltApp(source, interval_s=0.2)
        async with app.run_test(size=size) as pilot:
            await pilot.pause(1.0)
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.3 if name == "launch" else 1.0)
            (IMAGES / f"{name}.svg").write_text(app.export_screenshot(title="molt-tui"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder), Path(folder) / "runs").create()
        source = Shown(home)
        run_id = play_until(source, home, STEP)
        asyncio.run(take(source))
        with suppress(MoltError):  # it may have come to its end meanwhile
            source.control(run_id, "stop")


if __name__ == "__main__":
    main()
