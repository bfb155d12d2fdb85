"""Panel of alerts: everything that needs a look, what to do about it, what healthy looks like, and when it was so."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from molt_tui.tui import glyphs
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.panel import Line, Panel
from molt_tui.verdict import Timeline, Verdict

RULE = 18


class AlertPanel(Panel):
    TITLE = "Alerts"
    HELP = (
        "Every finding about this run, most urgent first: what it sees, what to press or change, what healthy looks like.\n"
        "Below: which alerts applied when, over all steps of the run; judged anew whenever this panel is opened."
    )

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.timeline: Timeline | None = None

    def select(self, view: RunView) -> list[Verdict]:
        return list(view.verdicts)

    def headline(self, data: list[Verdict]) -> str:
        counts = [(level, sum(v.level == level for v in data)) for level in ("critical", "warning")]
        return ", ".join(f"{count} {level}" for level, count in counts if count) or "none"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        found = [line for verdict in sorted(data, key=lambda v: not v.alarming) for line in self._finding(verdict)]
        past = self._when(width)
        return [*found, "", *past] if past and len(found) + 1 + len(past) <= height else found

    @staticmethod
    def _finding(verdict: Verdict) -> list[Line]:
        style = glyphs.LEVEL_STYLE[verdict.level]
        head = Content.assemble(
            (f"{glyphs.MARK[verdict.level]} {verdict.text}", f"bold {style}"), (f"  {verdict.rule}", "$quiet")
        )
        lines: list[Line] = [head]
        lines += [f"    {verdict.action}"] if verdict.action else []
        lines += [Content.styled(f"    healthy: {verdict.healthy}", "$quiet")] if verdict.alarming else []
        return lines

    def _when(self, width: int) -> list[Line]:
        """One line per rule that ever applied, one cell per judged step."""
        known = self.timeline
        if known is None or not known.steps:
            return []
        if not known.levels:
            return [Content.styled(f"no alert at any step up to {known.steps[-1]}", "$quiet")]
        ends = f"{known.steps[0]}".ljust(max(1, len(known.steps) - len(f"{known.steps[-1]}"))) + f"{known.steps[-1]}"
        lines: list[Line] = [Content.styled(f"{'when: steps':{RULE}}{ends}", "$quiet")]
        for rule, levels in known.levels.items():
            cells = [(glyphs.MARK[level], glyphs.LEVEL_STYLE[level]) if level else ("·", "$quiet") for level in levels]
            lines.append(Content.assemble(rule.ljust(RULE), *cells))
        return lines
