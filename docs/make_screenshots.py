"""Pictures for the README from the recorded healthy run: `python docs/make_screenshots.py` writes docs/images/*.svg."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from molt_tui.services import demo
from molt_tui.store.home import Home
from molt_tui.tui.app import MoltApp
from molt_tui.tui.store_source import StoreSource

IMAGES = Path(__file__).parent / "images"
STEP = 100
CHANGE_LR = ["n", "enter", "slash", *"adam.lr", "enter", "enter", "ctrl+u", *"5e-7", "enter", "escape"]
SHOTS = {
    "runs": ((80, 24), []),
    "run": ((80, 24), ["enter"]),
    "run-wide": ((150, 42), ["enter"]),
    "tokens": ((80, 24), ["enter", "t", "a", "enter", "e"]),
    "launch": ((80, 24), CHANGE_LR),
}


def play_until(source: StoreSource, home: Home, step: int) -> str:
    """A finished run and, beside it, one paused at a step; returns the latter's id."""
    demo.start(home, "healthy", speed=500.0)
    run_id = demo.start(home, "healthy", speed=5.0)
    while True:
        source.ingest()
        line = next(r for r in source.runs() if r.id == run_id)
        if (line.step or 0) >= step:
            return run_id
        time.sleep(0.05)


async def take(source: StoreSource) -> None:
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
        source = StoreSource(home)
        run_id = play_until(source, home, STEP)
        asyncio.run(take(source))
        source.control(run_id, "stop")


if __name__ == "__main__":
    main()
