"""Panel of alerts: everything that needs a look, what to do about it, and what healthy looks like."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from molt_tui.tui import glyphs
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.panel import Line, Panel


class AlertPanel(Panel):
    TITLE = "Alerts"
    HELP = "Every finding about this run, most urgent first: what it sees, what to press or change, what healthy looks like."

    def select(self, view: RunView) -> Any:
        return list(view.verdicts)

    def headline(self, data: Any) -> str:
        counts = [(level, sum(v.level == level for v in data)) for level in ("critical", "warning")]
        return ", ".join(f"{count} {level}" for level, count in counts if count) or "none"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        lines: list[Line] = []
        for verdict in sorted(data, key=lambda v: not v.alarming):
            style = glyphs.LEVEL_STYLE[verdict.level]
            lines.append(Content.assemble((f"{glyphs.MARK[verdict.level]} {verdict.text}", f"bold {style}"),
                                          (f"  {verdict.rule}", "$quiet")))  # fmt: skip
            if verdict.action:
                lines.append(f"    {verdict.action}")
            if verdict.alarming:
                lines.append(Content.styled(f"    healthy: {verdict.healthy}", "$quiet"))
        return lines
