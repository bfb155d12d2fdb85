"""The dashboard of one run: who it is, the verdict in words, then the panels that back it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from molt_tui.tui import format, glyphs
from molt_tui.tui.screens.base import MoltScreen
from molt_tui.tui.screens.controls import RunControls
from molt_tui.tui.screens.pick import MetricPicker
from molt_tui.tui.screens.runs import update
from molt_tui.tui.screens.scrub import Scrubbing
from molt_tui.tui.source import RunLine
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.alerts import AlertPanel
from molt_tui.tui.widgets.curves import LossPanel, MetricPanel, RewardPanel
from molt_tui.tui.widgets.footer import KeyFooter
from molt_tui.tui.widgets.job_bar import JobBar
from molt_tui.tui.widgets.machines import EnginePanel, HostPanel, TimePanel
from molt_tui.tui.widgets.panel import Panel
from molt_tui.tui.widgets.routing import RoutingPanel
from molt_tui.tui.widgets.signals import CorrectionPanel, MismatchPanel, QueuePanel, StalenessPanel
from molt_tui.tui.widgets.streams import EventPanel, LogPanel

STALE_S = 15.0
LIVE_STATES = frozenset({"starting", "running", "paused", "stopping"})


def head_line(view: RunView, at: int | None, width: int) -> Content:
    """Who, in which state, how far, how old; or how far back in time."""
    state = view.state or view.facts.state
    look = glyphs.state_look(state)
    step, total = view.facts.step if at is None else at, view.facts.max_steps
    done = Content("")
    if step is not None and total:
        done = Content.assemble(" ", (glyphs.bar(step / total, 10), "$accent on $track"))
    facts = [f"step {format.progress(step, total)}"]
    facts += [f"v{view.version}"] if view.version is not None else []
    facts += [f"attempt {view.attempt}"] if view.attempt else []
    left = Content.assemble((f" {look.glyph} {look.word} ", f"bold reverse {look.style}"), " ", (view.name, "bold"), "  ",
                            facts[0], done, *(f"  {fact}" for fact in facts[1:]))  # fmt: skip
    right = _age(view, state) if at is None else _position(view, at, state)
    left = left.truncate(max(0, width - right.cell_length - 1), ellipsis=True)
    return Content.assemble(left, " " * max(1, width - left.cell_length - right.cell_length), right)


def _age(view: RunView, state: str) -> Content:
    if view.age_s is None:
        return Content.styled("no word yet", "$quiet")
    if view.age_s > STALE_S and state in LIVE_STATES:
        return Content.styled(f"stale {format.age(view.age_s)}", "bold $text-warning")
    return Content.styled(f"as of {format.age(view.age_s)} ago", "$quiet")


def _position(view: RunView, at: int, state: str) -> Content:
    """Where in the past the screen is, and the way out."""
    newest = "?" if view.newest_step is None else view.newest_step
    way = "n: live" if state in LIVE_STATES else "n: the end"
    return Content.styled(f" ◀ at step {at} of {newest}, {way} ", "bold reverse $text-accent")


def verdict_lines(view: RunView, width: float = inf) -> Content:
    """The headline and, below it, what to do; further findings are named as far as there is room, and counted."""
    if not view.verdicts:
        return Content("")
    first, more = view.verdicts[0], [v for v in view.verdicts[1:] if v.alarming]
    style = glyphs.LEVEL_STYLE[first.level]
    when = "" if view.at is None else f"step {view.at}: "
    head = f"{glyphs.MARK[first.level]} {when}{first.text}"
    also = f"   also: {'; '.join(v.text for v in more)}" if more else ""
    if len(head) + len(also) > width:
        also = f"   +{len(more)} more (a)" if more else ""
    room = width - len(also)
    if len(head) > room:
        head = f"{head[: max(0, int(room) - 1)]}…"
    top = Content.assemble((head, f"bold {style}"), (also, "$text-warning"))
    return Content("\n").join([top, Content.styled(f"  {first.action}" if first.action else "", "$quiet")])


class RunScreen(Scrubbing, RunControls, MoltScreen):
    TITLE = "Run"
    HELP = (
        "The two lines on top say what the run is doing and what to press: ✔ nothing to do, ● for your information,"
        " ▲ it could go better or needs a look, ✖ something is broken.\n\n"
        "tab and arrows walk the panels, z or enter shows one of them alone, esc comes back.\n"
        "[ and ] go back and forth in time by one step, { and } by ten; all panels show that step until n. In a zoomed curve"
        " left and right move the cursor, s smooths, L makes it logarithmic. m draws any metric.\n"
        "Figures are those of the step that is shown; what the engine does not report says so."
    )
    ALLOW_IN_MAXIMIZED_VIEW = "#heading, Footer"
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *Scrubbing.SCRUB,
        Binding("a", "open('alerts')", "Alerts", id="run.alerts"),
        Binding("l", "open('log')", "Log", id="run.log"),
        Binding("e", "open('routing')", "Expert routing", show=False, id="run.routing"),
        Binding("m", "metric", "Metric", show=False, id="run.metric"),
        Binding("t", "traces", "Traces", id="run.traces"),
        *(replace(key, show=False) if key.id == "run.relaunch" else key for key in RunControls.CONTROLS),
        Binding("tab,right,down,j", "app.focus_next", "Next panel", show=False, id="run.next"),
        Binding("shift+tab,left,up,k,h", "app.focus_previous", "Previous panel", show=False, id="run.previous"),
        Binding("escape,backspace", "back", "Back", id="run.back"),
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self.view: RunView | None = None
        self.at: int | None = None
        self.metric: str | None = None
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
                yield RoutingPanel(id="routing")
                yield MetricPanel(id="metric")
            with Vertical(id="signals"):
                yield QueuePanel(id="queue")
                yield StalenessPanel(id="staleness")
                yield CorrectionPanel(id="correction")
                yield MismatchPanel(id="mismatch")
                yield TimePanel(id="time")
                yield EnginePanel(id="engines")
            with Vertical(id="machines"):
                yield HostPanel(id="hosts")
                yield AlertPanel(id="alerts")
                yield EventPanel(id="events")
                yield LogPanel(id="log")
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(RewardPanel).focus()
        self.watch(self, "maximized", self._zoomed, init=False)

    def _zoomed(self, panel: Widget | None) -> None:
        """What has no room of its own goes away with its zoom."""
        for shown in self.query(".-shown"):
            if shown is not panel:
                shown.remove_class("-shown")
                if shown.has_focus and not shown.display:
                    self.query_one(RewardPanel).focus()
        for curve in self.query(Panel):
            curve.redraw()

    @property
    def selected(self) -> RunLine | None:
        view = self.view
        if view is None:
            return None
        facts = view.facts
        return RunLine(view.run_id, view.name, view.state or facts.state, facts.detail, view.newest_step or facts.step,
                       facts.max_steps, view.version, job_id=view.job_id, last_checkpoint=facts.last_checkpoint)  # fmt: skip

    def look(self) -> None:
        points = 2 * max(80, self.app.size.width)
        source, run_id, at, metric = self.molt.source, self.run_id, self.at, self.metric
        self.ask("run", lambda: source.run(run_id, points, at, metric))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The present has nothing later."""
        if action == "live" or (action == "scrub" and parameters[0] in (1, 10)):
            return self.at is not None
        return super().check_action(action, parameters)

    def answered(self, topic: str, value: Any) -> None:
        if topic == "timeline":
            panel = self.query_one(AlertPanel)
            panel.timeline = value
            panel.redraw()
            return
        if value.at != self.at:
            return  # the screen has moved on to another step
        self.view, self.error = value, None
        for panel in self.query(Panel):
            panel.show(value)
        self.show_head()
        self.offer()

    def failed(self, topic: str, error: str) -> None:
        self.error = error
        self.show_head()

    def on_resize(self) -> None:
        self.show_head()

    def show_head(self) -> None:
        head, verdict = self.query_one("#head", Static), self.query_one("#verdict", Static)
        if self.view is not None:
            width = self.app.size.width
            update(head, head_line(self.view, self.at, width))
            update(verdict, verdict_lines(self.view, width - 2))
            level = self.view.verdicts[0].level if self.view.verdicts else "info"
            verdict.set_class(level == "critical", "-bad").set_class(level == "warning", "-warn")
        if self.error is not None:
            update(verdict, Content.styled(f"{glyphs.MARK['critical']} not refreshed: {self.error}", "bold $text-error"))

    def action_open(self, name: str) -> None:
        """Show a panel alone; the same key closes it."""
        panel = self.query_one(f"#{name}", Panel)
        if self.maximized is panel:
            self.minimize()
            return
        if isinstance(panel, AlertPanel):
            source, run_id = self.molt.source, self.run_id
            self.ask("timeline", lambda: source.timeline(run_id))
        panel.add_class("-shown")
        self.maximize(panel, container=False)
        panel.focus()

    def action_metric(self) -> None:
        """Choose any metric and draw its curve."""

        def chosen(name: str | None) -> None:
            if name is not None:
                self.metric = name
                self.look()
                if self.maximized is None or self.maximized.id != "metric":
                    self.action_open("metric")

        names = [key for key, value in (self.view.metrics if self.view else {}).items() if isinstance(value, (int, float))]
        self.molt.push_screen(MetricPicker(names), chosen)

    def action_traces(self) -> None:
        self.molt.open_traces(self.run_id)

    def action_back(self) -> None:
        """One level: out of a zoomed panel, else to the present, else to the screen before."""
        if self.maximized is not None:
            self.minimize()
        elif self.at is not None:
            self.go_to(None)
        else:
            self.molt.go_back()
