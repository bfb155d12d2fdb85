"""The dashboard of one run: who it is, the verdict in words, then the panels that back it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Footer, Static

from molt_tui.tui import format, glyphs
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.controls import RunControls
from molt_tui.tui.screens.runs import update
from molt_tui.tui.source import RunLine
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.curves import LossPanel, RewardPanel
from molt_tui.tui.widgets.job_bar import JobBar
from molt_tui.tui.widgets.machines import EnginePanel, HostPanel, TimePanel
from molt_tui.tui.widgets.panel import Panel
from molt_tui.tui.widgets.signals import CorrectionPanel, MismatchPanel, QueuePanel, StalenessPanel
from molt_tui.tui.widgets.streams import EventPanel, LogPanel
from molt_tui.verdict import Verdict

STALE_S = 15.0


def head_line(view: RunView, width: int) -> Content:
    """Who, in which state, how far, how old."""
    look = glyphs.state_look(view.facts.state)
    step, total = view.facts.step, view.facts.max_steps
    done = Content("")
    if step is not None and total:
        done = Content.assemble(" ", (glyphs.bar(step / total, 10), "$accent on $track"))
    seen = "no word yet" if view.age_s is None else f"as of {format.age(view.age_s)} ago"
    late = view.age_s is not None and view.age_s > STALE_S and view.facts.state == "running"
    facts = [f"step {format.progress(step, total)}"]
    facts += [f"v{view.version}"] if view.version is not None else []
    facts += [f"attempt {view.attempt}"] if view.attempt else []
    left = Content.assemble((f" {look.glyph} {look.word} ", f"bold reverse {look.style}"), " ", (view.name, "bold"), "  ",
                            facts[0], done, *(f"  {fact}" for fact in facts[1:]))  # fmt: skip
    right = Content.styled(seen, "bold $text-warning" if late else "$quiet")
    left = left.truncate(max(0, width - right.cell_length - 1), ellipsis=True)
    return Content.assemble(left, " " * max(1, width - left.cell_length - right.cell_length), right)


def verdict_lines(verdicts: list[Verdict]) -> Content:
    """The headline and, below it, what to do; further findings are counted."""
    if not verdicts:
        return Content("")
    first = verdicts[0]
    style = glyphs.LEVEL_STYLE[first.level]
    more = [v.text for v in verdicts[1:] if v.alarming]
    head = Content.assemble((f"{glyphs.MARK[first.level]} {first.text}", f"bold {style}"),
                            (f"   also: {'; '.join(more)}" if more else "", "$text-warning"))  # fmt: skip
    return Content("\n").join([head, Content.styled(f"  {first.action}" if first.action else "", "$quiet")])


class RunScreen(RunControls, MoltScreen):
    TITLE = "Run"
    HELP = (
        "The two lines on top say what the run is doing and what to press: ✔ nothing to do, ● for your information,"
        " ▲ it could go better or needs a look, ✖ something is broken.\n\n"
        "tab and arrows walk the panels, z or enter shows one of them alone, esc comes back.\n"
        "Figures are those of the newest finished step; what the engine does not report says so."
    )
    ALLOW_IN_MAXIMIZED_VIEW = "#heading, Footer"
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Log", id="run.log"),
        Binding("t", "traces", "Traces", id="run.traces"),
        *RunControls.CONTROLS,
        Binding("tab,right,down,j", "app.focus_next", "Next panel", show=False, id="run.next"),
        Binding("shift+tab,left,up,k,h", "app.focus_previous", "Previous panel", show=False, id="run.previous"),
        Binding("escape,backspace", "back", "Back", id="run.back"),
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self.view: RunView | None = None
        self.error: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="heading"):
            yield Static("", id="head", markup=False)
            yield Static("", id="verdict", markup=False)
            yield JobBar(self.run_id)
        with Container(id="panels"):
            with Vertical(id="learning"):
                yield RewardPanel(id="reward")
                yield LossPanel(id="loss")
            with Vertical(id="signals"):
                yield QueuePanel(id="queue")
                yield StalenessPanel(id="staleness")
                yield CorrectionPanel(id="correction")
                yield MismatchPanel(id="mismatch")
                yield TimePanel(id="time")
                yield EnginePanel(id="engines")
            with Vertical(id="machines"):
                yield HostPanel(id="hosts")
                yield EventPanel(id="events")
                yield LogPanel(id="log")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(RewardPanel).focus()
        self.watch(self, "maximized", self._zoomed, init=False)

    def _zoomed(self, panel: Widget | None) -> None:
        """A log that has no room of its own goes away with its zoom."""
        log = self.query_one(LogPanel)
        if panel is None and log.has_class("-shown"):
            log.remove_class("-shown")
            if log.has_focus and not log.display:
                self.query_one(EventPanel).focus()

    @property
    def selected(self) -> RunLine | None:
        view = self.view
        if view is None:
            return None
        facts = view.facts
        return RunLine(view.run_id, view.name, facts.state, facts.detail, facts.step, facts.max_steps, view.version)

    def look(self) -> None:
        points = 2 * max(80, self.app.size.width)
        source, run_id = self.molt.source, self.run_id
        self.ask("run", lambda: source.run(run_id, points))

    def answered(self, topic: str, value: RunView) -> None:
        self.view, self.error = value, None
        for panel in self.query(Panel):
            panel.show(value)
        self._show_head()

    def failed(self, topic: str, error: str) -> None:
        self.error = error
        self._show_head()

    def on_resize(self) -> None:
        self._show_head()

    def _show_head(self) -> None:
        head, verdict = self.query_one("#head", Static), self.query_one("#verdict", Static)
        if self.view is not None:
            update(head, head_line(self.view, self.app.size.width))
            update(verdict, verdict_lines(list(self.view.verdicts)))
            level = self.view.verdicts[0].level if self.view.verdicts else "info"
            verdict.set_class(level == "critical", "-bad").set_class(level == "warning", "-warn")
        if self.error is not None:
            update(verdict, Content.styled(f"{glyphs.MARK['critical']} not refreshed: {self.error}", "bold $text-error"))

    def action_log(self) -> None:
        log = self.query_one(LogPanel)
        if self.maximized is log:
            self.minimize()
            return
        log.add_class("-shown")
        self.maximize(log, container=False)
        log.focus()

    def action_traces(self) -> None:
        self.molt.open_traces(self.run_id)

    def action_back(self) -> None:
        """One level: out of a zoomed panel, else to the screen before."""
        if self.maximized is not None:
            self.minimize()
        else:
            self.molt.go_back()
