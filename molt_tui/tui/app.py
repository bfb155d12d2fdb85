"""The app: screens, keys that act everywhere, the palette, and the thread that keeps the database up to date."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.css.query import NoMatches
from textual.filter import LineFilter
from textual.reactive import Initialize, Reactive
from textual.screen import Screen
from textual.theme import Theme, ThemeProvider
from textual.worker import Worker

from molt_tui.lines import RunLine
from molt_tui.store.home import Home, find_home
from molt_tui.text import clean
from molt_tui.tui import preferences, terminal
from molt_tui.tui.background import Answer, Background, Ingested
from molt_tui.tui.cost import CountingDriver, Reading, in_words
from molt_tui.tui.opened_later import OpenedLater
from molt_tui.tui.patches import forget_other_places, free_closed_widgets, read_any_bytes
from molt_tui.tui.places import Places
from molt_tui.tui.plain import AsciiOnly, key_words, wants_ascii
from molt_tui.tui.preferences import Preferences
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.dialogs import ClosesItself
from molt_tui.tui.screens.runs import RunsScreen
from molt_tui.tui.themes import THEMES, full_name

if TYPE_CHECKING:
    from molt_tui.draft import Draft
    from molt_tui.tui.source import Source

log = logging.getLogger(__name__)

TIDY_S = 10.0
LEAVE_S = 1.0  # to find out which runs go on


def run_app(run_id: str | None = None, *, theme: str | None = None, ascii: bool | None = None,
            read_only: bool | None = None) -> int:  # fmt: skip
    """Show the app until the user leaves, then say which runs go on; returns the exit code.

    `run_id`: open that run's dashboard at once. The rest wins over tui.toml. The caller has made sure that there is a terminal.
    """
    home = find_home().create()
    chosen = preferences.load(home.path / preferences.FILE).with_options(theme=theme, ascii=ascii, read_only=read_only)
    if chosen.keys:
        from molt_tui.tui import keymap

        preferences.check_keys(chosen.keys, {key.id: key.keys for key in keymap.all_keys()})
        keymap.check_clashes(chosen.keys)
    logging.basicConfig(filename=home.logs / "tui.log", level=logging.WARNING)
    terminal.leave_when_gone(sys.stdin.fileno())
    source = OpenedLater(partial(_open_store, home, chosen.read_only))
    app = MoltApp(source, chosen, interval_s=chosen.refresh_s or terminal.refresh_interval(), open_run=run_id,
                  ansi=terminal.no_color(), keep_theme=partial(preferences.keep_theme, home.path / preferences.FILE))  # fmt: skip
    words = app.run()
    if words:
        print(words)
    return app.return_code or 0


def _open_store(home: Home, read_only: bool) -> Source:
    from molt_tui.tui.store_source import StoreSource

    return StoreSource(home, read_only=read_only)


def farewell(lines: Sequence[RunLine]) -> str:
    """What to print after leaving: which runs go on, and how to come back; empty when none does."""
    names = [run.name for run in lines if run.active]
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"still running: {', '.join(names[:5])}{more}\ncome back with: molt-tui"


class RunCommands(Provider):
    """Every run by name in the palette."""

    def _entries(self) -> list[tuple[str, Callable[[], Any], str]]:
        app = self.app
        assert isinstance(app, MoltApp)
        return [(f"Open {run.name}", partial(app.open_run, run.id), f"{run.state}, {run.id}") for run in app.known_runs()]

    async def discover(self) -> Hits:
        for title, action, about in self._entries()[:8]:
            yield DiscoveryHit(title, action, help=about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, action, about in self._entries():
            score = matcher.match(f"{title} {about}")
            if score > 0:
                yield Hit(score, title, action, help=about)


class Palette(ClosesItself, CommandPalette):
    """Textual's palette raises KeyError when a page key comes before its list is laid out, NoMatches when it was closed
    while a search was under way."""

    def run_worker(self, work: Any, *arguments: Any, **keywords: Any) -> Worker[Any]:
        async def search() -> None:
            with contextlib.suppress(NoMatches):
                await work()

        return super().run_worker(search, *arguments, **keywords)

    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(KeyError):
            super()._action_command_list(action)


class MoltApp(Places):
    """`source` answers every question about runs; `interval_s` is the pace of looking at them."""

    TITLE = "molt-tui"
    CSS_PATH = "app.tcss"
    COMMANDS = App.COMMANDS | {RunCommands}
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-short"), (34, "-tall")]
    theme = Reactive(Initialize(lambda app: app._first_theme))  # were it set later, the first paint would parse the style twice
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", id="app.help"),
        Binding("colon,ctrl+p", "command_palette", "Palette", show=False, id="app.palette"),
        Binding("Q", "query", "Query", show=False, id="app.query"),
        Binding("q", "quit", "Quit", id="app.quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True, id="app.interrupt"),
    ]

    def __init__(self, source: Source, chosen: Preferences | None = None, *, interval_s: float = 1.0,
                 open_run: str | None = None, ansi: bool = False,
                 keep_theme: Callable[[str], None] | None = None) -> None:  # fmt: skip
        self.chosen = chosen or Preferences()
        self._first_theme = "ansi-dark" if ansi else full_name(self.chosen.theme)
        super().__init__(driver_class=CountingDriver, ansi_color=ansi or None)
        free_closed_widgets()
        read_any_bytes()
        self.source = source
        self.started = Reading.now()
        self._ascii = [AsciiOnly()] if self.chosen.ascii or wants_ascii(encoding=sys.stderr.encoding) else []
        self.background = Background(self, source.ingest, interval_s)
        self.animation_level = "none"
        self._first_run = open_run
        self._untidy = False
        self._keep_theme = keep_theme
        self.set_keymap({name: ",".join(preferences.key_names(keys)) for name, keys in self.chosen.keys.items()})

    @property
    def available_themes(self) -> dict[str, Theme]:
        return {**super().available_themes, **{theme.name: theme for theme in THEMES}}

    @property
    def ascii(self) -> bool:
        """Whether everything is drawn with ASCII characters."""
        return bool(self._ascii)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        return key_words(shown) if self._ascii else shown

    def get_default_screen(self) -> Screen:
        return RunsScreen()

    def on_mount(self) -> None:
        if self._keep_theme is not None:
            keep = self._keep_theme
            self.theme_changed_signal.subscribe(self, lambda theme: keep(theme.name))
        if self._first_run is not None:
            self.open_run(self._first_run)
        if threading.current_thread() is threading.main_thread():  # leaving by signal gives the terminal back as well
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: self.exit(return_code=terminal.TERMINATED))
        self.screen_change_signal.subscribe(self, self._screen_changed)
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        """What would hold up the first paint: watching the runs, and collecting garbage (what the start made stays)."""
        from molt_tui.tui import allocator

        allocator.one_pool()
        self.set_interval(TIDY_S, self._tidy)
        gc.freeze()
        gc.enable()
        self.background.start()

    def _screen_changed(self, screen: Screen) -> None:
        self._untidy = True

    def _tidy(self) -> None:
        """Free what screens that were left held: cycles, which Python lets lie until they are a quarter of everything."""
        from molt_tui.tui import allocator

        if self._untidy:
            self._untidy = False
            forget_other_places()
            gc.collect()
            allocator.give_back()

    def _fatal_error(self) -> None:
        """An error of ours: its traceback belongs in the log, one line on the terminal; the runs do not notice."""
        error = self._exception
        log.critical("the app ended", exc_info=error)
        self._exit_renderables.append(
            f"molt-tui: unexpected {type(error).__name__}; its traceback is in {find_home().logs / 'tui.log'}"
        )
        self._close_messages_no_wait()

    def on_unmount(self) -> None:
        self.background.stop()

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is drawn as it is by the fields it goes to."""
        if isinstance(event, events.Paste):
            event.text = clean(event.text, lines=True)
        await super().on_event(event)

    def on_ingested(self, message: Ingested) -> None:
        self.background.handled()
        screen = self.screen
        if isinstance(screen, MoltScreen):
            if message.error is not None:
                screen.failed("ingest", message.error)
            else:
                screen.look()

    def on_resize(self, event: events.Resize) -> None:
        forget_other_places()
        self.cover_if_small(*event.size)  # the app's own size is still the old one here

    async def action_quit(self) -> None:
        try:
            lines = await self.background.within(LEAVE_S, self.source.runs)
        except Exception:  # leaving always works, even while the disk hangs
            lines = self.known_runs()
        self.exit(farewell(lines))

    def known_runs(self) -> Sequence[RunLine]:
        """Runs that the Runs screen has seen, active ones first."""
        for screen in self.screen_stack:
            if isinstance(screen, RunsScreen):
                return sorted(screen.lines.values(), key=lambda r: (not r.active, -r.created))
        return ()

    def opened_launch(self, draft: Draft | None, run_ids: Sequence[str]) -> None:
        """Runs were started: the dashboard of a single one, or the list, replaces the launch screens."""
        self.forget_draft(draft)
        self.go_home()
        self.background.ingest_now()
        if len(run_ids) == 1:
            self.open_run(run_ids[0])

    def control(self, run: RunLine, name: str) -> None:
        self.background.act(self, f"{name} {run.id}", lambda: self.source.control(run.id, name))

    def on_answer(self, answer: Answer) -> None:
        failed = answer.error is not None
        self.notify(answer.error or str(answer.value), severity="error" if failed else "information", markup=False)
        self.background.ingest_now()

    def action_command_palette(self) -> None:
        if not CommandPalette.is_open(self):
            self.push_screen(Palette(id="--command-palette"))

    def search_themes(self) -> None:
        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))

    def action_help(self) -> None:
        from molt_tui.tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.for_screen(self.screen))

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        yield SystemCommand("Runs", "All runs", self.go_home)
        if not self.chosen.read_only:
            yield SystemCommand("Launch", "Start a new run from a recipe", self.open_launch)
        yield SystemCommand("Cluster", "Partitions, free GPUs and your jobs", self.open_cluster)
        yield SystemCommand("Compare", "Runs and groups side by side", lambda: self.open_compare(()))
        yield SystemCommand("Query", "SQL over runs, metrics, events and rollouts", self.action_query)
        run_id = getattr(screen, "run_id", None) or getattr(getattr(screen, "selected", None), "id", None)
        if isinstance(run_id, str):
            yield SystemCommand("Traces", "Recorded rollouts of this run", partial(self.open_traces, run_id))
        yield SystemCommand("Help", "What this shows and which keys act here", self.action_help)
        yield SystemCommand("Own cost", "Processor, memory, bytes and scheduler calls of molt-tui itself", self._show_cost)
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)
        yield SystemCommand("Quit", "Leave; runs go on", self.action_quit)

    def _show_cost(self) -> None:
        self.notify(in_words(self.started, Reading.now(), self.background.interval_s), timeout=15, markup=False)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """`quiet`: text that matters less; `track`: lines and the empty part of a gauge."""
        if self.native_ansi_color:
            return {"quiet": "ansi_bright_black", "track": "ansi_black"}
        return {"quiet": "#8b93a1", "track": "#3a4250" if self.current_theme.dark else "#d3d2ce"}
