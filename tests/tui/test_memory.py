"""A long session: what was closed is gone, and what stays is bounded."""

import gc
import subprocess
import sys
import weakref
from collections import Counter
from dataclasses import replace

import pytest
from textual._styles_cache import StylesCache
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets._footer import FooterKey

from molt_tui.tui.patches import free_closed_widgets
from molt_tui.tui.screens import runs
from molt_tui.tui.screens.runs import RunsScreen
from tests.tui.fake_source import RUNS

TIMES = 20
WAYS = {
    "run": ["enter"], "zoomed": ["enter", "z"], "form": ["r"], "review": ["r", "v"], "launch": ["n"], "compare": ["v"],
    "cluster": ["C"], "traces": ["enter", "t"], "tokens": ["enter", "t", "enter"], "group": ["enter", "t", "v"],
    "help": ["question_mark"], "palette": ["colon"], "question": ["x"], "saved queries": ["Q", "ctrl+o"],
}  # fmt: skip


async def home(driver):
    driver.app.go_home()
    await driver.settle()
    assert isinstance(driver.app.screen, RunsScreen)


def widgets_alive(app) -> Counter:
    """Widgets that are not shown any more, by name; none of those that wait for the garbage collector."""
    gc.collect()
    found = [o for o in gc.get_objects() if isinstance(o, Widget) and o.app is app and o not in app._registry]
    return Counter(type(widget).__name__ for widget in found)


@pytest.mark.parametrize("way", WAYS)
async def test_a_screen_that_was_closed_is_gone(open_app, way):
    async with open_app() as driver:
        seen = []
        for _ in range(3):
            for key in WAYS[way]:
                await driver.press(key)
                seen.append(weakref.ref(driver.app.screen))
            await home(driver)
        await driver.press("j")
        gc.collect()
        kept = [type(screen()).__name__ for screen in seen if screen() is not None]
        assert set(kept) <= {"QueryScreen"}, "the query is kept on purpose, once"
        assert set(widgets_alive(driver.app)) <= {"JobBar"}, "asyncio keeps its cancelled timer until the time comes"


async def test_the_footer_lets_go_of_the_keys_it_has_shown(open_app):
    async with open_app() as driver:
        for _ in range(TIMES):
            await driver.press("slash", "escape")
        gc.collect()
        made = [o for o in gc.get_objects() if isinstance(o, FooterKey) and o.app is driver.app]
        assert len(made) <= 2 * len(driver.app.screen.query(FooterKey))


async def test_the_footer_is_not_made_anew_for_the_same_keys(open_app):
    async with open_app(run=RUNS[0].id) as driver:
        await driver.press("tab")
        before = list(driver.app.screen.query(FooterKey))
        await driver.press("tab", "tab")
        assert list(driver.app.screen.query(FooterKey)) == before
        await driver.press("z")
        assert before


def test_backgrounds_are_cached_by_colour_alone():
    free_closed_widgets()
    base, background = Color.parse("red"), Color.parse("blue").with_alpha(0.5)
    inner, outer = StylesCache().get_inner_outer(base, background)
    assert (inner.background, outer.background) == (base + background, base)
    assert StylesCache().get_inner_outer(base, background) == (inner, outer)


async def test_closed_widgets_leave_no_lines_behind(open_app):
    async with open_app(size=(160, 50)) as driver:
        for _ in range(5):
            await driver.press("enter", "r")
            await home(driver)
        gc.collect()
        caches = sum(isinstance(o, StylesCache) for o in gc.get_objects())
        widgets = sum(isinstance(o, Widget) for o in gc.get_objects())
        assert caches <= widgets


def drawn_lines(screen) -> int:
    return sum(len(widget._styles_cache._cache) for widget in screen.walk_children(with_self=True))


async def test_a_screen_that_is_out_of_sight_keeps_no_lines_and_comes_back_whole(open_app):
    async with open_app(run=RUNS[0].id) as driver:
        run, before = driver.app.screen, driver.text()
        await driver.press("question_mark")
        assert drawn_lines(run), "it is in sight beneath the help"
        await driver.press("escape")
        driver.app.open_launch()
        await driver.settle()
        assert driver.app.screen is not run and not drawn_lines(run)
        await driver.press("escape")
        assert driver.app.screen is run and driver.text() == before


async def test_curves_of_few_runs_are_kept_beside_those_in_view(open_app, monkeypatch):
    monkeypatch.setattr(runs, "TRENDS_KEPT", 3)
    async with open_app() as driver:
        source, screen = driver.source, driver.app.screen
        source.lines = [replace(RUNS[0], id=f"r{i}", name=f"n{i}", group=None) for i in range(100)]
        await driver.refresh()
        for _ in range(8):
            await driver.press("pagedown")
        in_view = screen.query_one("KeyTable").visible_keys
        assert set(in_view) <= screen.trends.keys() and len(screen.trends) <= len(in_view) + 3
        source.lines = source.lines[:5]
        await driver.refresh()
        assert screen._matching.keys() <= {"r0", "r1", "r2", "r3", "r4"}


async def test_what_was_computed_for_other_sizes_is_forgotten(open_app):
    def kept() -> int:
        methods = [getattr(owner, name) for owner in (Region, Strip) for name in vars(owner)]
        return sum(method.cache_info().currsize for method in methods if hasattr(method, "cache_info"))

    async with open_app(run=RUNS[0].id) as driver:
        once = kept()
        for width in range(80, 95):
            await driver.pilot.resize_terminal(width, 40)
            await driver.pilot.pause()
        assert 0 < kept() < 2 * once


def test_freed_memory_goes_back_to_the_system():
    """Small blocks, every fortieth of which stays: their pages are free, but in the middle of the pool."""
    code = (
        "from molt_tui.tui import allocator, cost\n"
        "blocks = [bytes(600) for _ in range(60000)]\n"
        "before, blocks = cost.memory_mb(), blocks[::40]\n"
        "allocator.one_pool()\n"
        "allocator.give_back()\n"
        "print(before - cost.memory_mb())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 20


async def test_screens_that_were_left_are_collected_before_python_would(open_app):
    async with open_app() as driver:
        await driver.press("enter")
        left = weakref.ref(driver.app.screen)
        await home(driver)
        await driver.press("j")
        driver.app._tidy()
        assert left() is None
        collections = gc.get_stats()[2]["collections"]
        driver.app._tidy()
        assert gc.get_stats()[2]["collections"] == collections, "nothing was left meanwhile"
