"""Panels that show the end of a stream: events and the log. Scrolling up stops following, and the title says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from molt_tui.log_digest import LogLine, digest
from molt_tui.tui import format
from molt_tui.tui.view import EventLine, RunView
from molt_tui.tui.widgets.panel import Line, Panel

KIND_STYLE = {
    "fault": "$text-error",
    "alert": "$text-warning",
    "phase": "$text-accent",
    "checkpoint": "$text-success",
    "control": "$text-primary",
    "eval": "$text-success",
}


class TailPanel(Panel):
    """A window on a list of lines. `bottom` is the index after the last shown line, None while following the end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_lines(-1)", "Up", show=False, id="tail.up"),
        Binding("down,j", "scroll_lines(1)", "Down", show=False, id="tail.down"),
        Binding("pageup,ctrl+u", "scroll_pages(-1)", "Page up", show=False, id="tail.page_up"),
        Binding("pagedown,ctrl+d", "scroll_pages(1)", "Page down", show=False, id="tail.page_down"),
        Binding("home,g", "scroll_lines(-1000000)", "First", show=False, id="tail.first"),
        Binding("f,end,G", "follow", "Follow", show=False, id="tail.follow"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.bottom: int | None = None

    def headline(self, data: Any) -> str:
        return "" if self.bottom is None else "stopped, f follows"

    def line(self, item: Any) -> Line:
        return str(item)

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        if not data:
            return [Content.styled("nothing yet", "$quiet")]
        end = len(data) if self.bottom is None else min(self.bottom, len(data))
        return [self.line(item) for item in data[max(0, end - height) : end]]

    def action_scroll_lines(self, by: int) -> None:
        total, page = len(self.data or ()), max(1, self.size.height)
        start = total if self.bottom is None else self.bottom
        end = max(min(page, total), start + by)
        self.bottom = None if end >= total else end
        self.redraw()

    def action_scroll_pages(self, by: int) -> None:
        self.action_scroll_lines(by * max(1, self.size.height - 1))

    def action_follow(self) -> None:
        self.bottom = None
        self.redraw()


class EventPanel(TailPanel):
    TITLE = "Events"
    HELP = "What the run and its people did: phases, weight updates, checkpoints, evaluations, faults and answers."

    def select(self, view: RunView) -> Sequence[EventLine]:
        return tuple(view.events)

    def line(self, item: EventLine) -> Line:
        style = KIND_STYLE.get(item.kind, "")
        clock = format.clock(item.t)
        return Content.assemble((clock if self.size.width > 50 else clock[:5], "$quiet"), " ", (item.text, style))


class LogPanel(TailPanel):
    TITLE = "Log"
    HELP = (
        "The end of the newest attempt's log: lines of this project and errors of anybody; what vLLM, Ray and other libraries\n"
        "print is folded into counts, w shows it. Control characters are shown, never interpreted."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "everything", "All lines", id="log.everything")]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.everything = False
        self.lines: Sequence[str] = ()

    def select(self, view: RunView) -> Sequence[LogLine]:
        if self.data is None or view.log != self.lines:
            self.lines = view.log
            return digest(view.log, everything=self.everything)
        return self.data

    def headline(self, data: Any) -> str:
        stopped = super().headline(data)
        return ", ".join(filter(None, ["all lines" if self.everything else "", stopped]))

    def line(self, item: LogLine) -> Line:
        style = {"error": "$text-error", "noise": "$quiet"}.get(item.kind, "")
        return Content.assemble((f"{item.count} × " if item.count > 1 else "", "bold $quiet"), (item.text, style))

    def action_everything(self) -> None:
        self.everything = not self.everything
        self.bottom = None
        self.data = digest(self.lines, everything=self.everything)
        self.redraw()
