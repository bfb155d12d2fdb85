"""Keys that act everywhere: help, palette, quit; and the rules that every binding keeps."""

import ast
import importlib
import pkgutil
from pathlib import Path

from textual.binding import Binding
from textual.command import CommandList, CommandPalette
from textual.dom import DOMNode

import molt_tui.tui
from molt_tui.tui.screens.help import HelpScreen
from molt_tui.tui.screens.run import RunScreen
from molt_tui.tui.screens.runs import RunsScreen
from tests.tui.fake_source import RUNS


async def test_help_is_about_the_focused_pane(open_app):
    async with open_app() as driver:
        await driver.press("question_mark")
        assert isinstance(driver.app.screen, HelpScreen)
        assert "Closing molt-tui changes nothing" in driver.text()
        await driver.press("escape", "enter", "tab", "tab", "question_mark")
        assert "Run: Queue" in driver.text()
        assert "generation-bound" in driver.text()
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunScreen)


async def test_help_names_keys_as_they_are_typed(open_app):
    async with open_app() as driver:
        await driver.press("question_mark")
        assert ("!", "Next trouble") in driver.app.screen.keys
        assert not [keys for keys, _ in driver.app.screen.keys if "_" in keys]


async def test_help_is_read_to_its_end_at_once_and_page_by_page(open_app):
    async with open_app() as driver:
        await driver.press("question_mark")
        last = driver.app.screen.keys[-1][1]
        assert last not in driver.text() and "Scroll Left" not in [words for _, words in driver.app.screen.keys]
        for keys in (["G"], ["pagedown"] * 4, ["j"] * 60):
            await driver.press("g")
            assert "Closing molt-tui changes nothing" in driver.text()
            await driver.press(*keys)
            assert last in driver.text()


async def test_palette_opens_on_both_keys_and_finds_runs(open_app):
    async with open_app() as driver:
        for key in ("colon", "ctrl+p"):
            await driver.press(key)
            assert isinstance(driver.app.screen, CommandPalette)
            await driver.press("escape")
        await driver.press("colon")
        await driver.type("long-horizon")
        await driver.pilot.pause(0.3)
        await driver.press("enter")
        await driver.settle()
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id == RUNS[3].id


async def test_a_search_that_is_overtaken_by_the_end_of_the_palette_is_no_error(open_app):
    async with open_app() as driver:
        await driver.press("colon")
        palette = driver.app.screen
        await palette.query_one(CommandList).remove()
        await palette._gather_commands("run").wait()
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_a_page_key_in_the_list_of_themes_before_it_is_laid_out(open_app):
    async with open_app() as driver:
        driver.app.action_change_theme()
        await driver.pilot.pause()
        palette = driver.app.screen
        palette.query_one(CommandList)._index_to_line.clear()
        palette._action_command_list("page_down")
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunsScreen)


async def test_every_binding_can_be_remapped(open_app):
    async with open_app() as driver:
        driver.app.set_keymap({"table.down": "e"})
        await driver.press("e")
        assert driver.app.screen.selected.id == RUNS[1].id
        assert isinstance(driver.app.screen, RunsScreen)


def test_every_binding_has_an_id_of_its_own():
    owners: dict[str, str] = {}
    for name in modules():
        for cls in vars(importlib.import_module(name)).values():
            if isinstance(cls, type) and issubclass(cls, DOMNode) and cls.__module__ == name:
                for binding in vars(cls).get("BINDINGS", []):
                    assert isinstance(binding, Binding) and binding.id, f"{name}.{cls.__name__}: {binding}"
                    assert owners.setdefault(binding.id, binding.action) == binding.action, binding.id


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(molt_tui.tui.__path__, "molt_tui.tui.")]


def test_screens_and_widgets_reach_data_only_through_the_source():
    """No screen or widget imports the store, the services, sqlite3 or subprocess."""
    for name in modules():
        if ".screens" in name or ".widgets" in name:
            tree = ast.parse(Path(importlib.import_module(name).__file__).read_text())
            nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
            imported = {getattr(node, "module", None) or node.names[0].name for node in nodes}
            bad = {m for m in imported if m.startswith(("molt_tui.store", "molt_tui.services", "sqlite", "subprocess", "engine"))}
            assert not bad, f"{name} imports {bad}"
