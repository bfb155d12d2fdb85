"""Two lines on the Run screen about the run's Slurm job: why it waits or where it runs, the forecast, the attempts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from molt_tui.tui import glyphs
from molt_tui.tui.background import Answer
from molt_tui.tui.cluster_view import JobView

if TYPE_CHECKING:
    from molt_tui.tui.app import MoltApp

# No refresh of the screen is more often than this; the database behind it changes every 15 s.
LEAST_S = 2.0
# Older than this Slurm's word is no longer taken as the present.
STALE_S = 180.0
ALIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "PENDING", "")


def moment(t: float, now: float) -> str:
    """A time of day, with its weekday or date unless it is today."""
    same_day = time.localtime(t)[:3] == time.localtime(now)[:3]
    near = abs(t - now) < 6 * 86400
    return time.strftime("%H:%M" if same_day else "%a %H:%M" if near else "%d %b %H:%M", time.localtime(t))


def job_lines(view: JobView, now: float) -> list[Content]:
    """The submission while there is no job, else the job; then forecast and attempts."""
    style = "$quiet"
    if view.submission in ("unknown", "submitting") and not view.job_id:
        first = f"{glyphs.MARK['warning']} {view.cluster} gave no answer: the job is looked for, never submitted twice"
        style = "$text-warning"
    elif view.submission == "refused":
        first, style = f"{glyphs.MARK['critical']} {view.cluster} refused the job: {view.said}", "$text-error"
    elif view.submission == "absent":
        first, style = f"{glyphs.MARK['critical']} never reached {view.cluster}; p submits it again", "$text-error"
    else:
        first = f"job {view.job_id or '?'} on {view.cluster}{_what(view, now)}"
    lines = [Content.styled(first + _stale(view, now), style)]
    tries = [f"{number} {_ended(reason, step)}" for number, reason, step in view.attempts]
    chain = f"attempts {', '.join(tries)}" if len(tries) > 1 else ""
    late = "$text-warning" if view.enough is False else "$quiet"
    if view.forecast or chain:
        lines.append(Content.assemble((view.forecast, late), "   " if view.forecast and chain else "", (chain, "$quiet")))
    return lines


def _what(view: JobView, now: float) -> str:
    if view.node_list and view.state not in ALIVE:
        return f": {view.words or view.state.lower()} on {view.node_list}"
    if view.node_list:
        return f": {view.node_list}" + (f", until {moment(view.end, now)}" if view.end is not None else "")
    expected = f"; expected start {moment(view.start, now)}" if view.start is not None else ""
    return f": {view.words or view.state.lower() or 'submitted'}{expected}"


def _ended(reason: str, step: int | None) -> str:
    return (reason or "running") + (f" at {step}" if reason and step is not None else "")


def _stale(view: JobView, now: float) -> str:
    if view.error:
        since = f" since {moment(view.answered, now)}" if view.answered is not None else ""
        return f" (Slurm does not answer{since})"
    if view.answered is not None and now - view.answered > STALE_S and view.state in ("PENDING", "RUNNING"):
        return f" (as of {moment(view.answered, now)})"
    return ""


class JobBar(Static):
    """Asks about the job by itself; takes no room for a local run."""

    def __init__(self, run_id: str) -> None:
        super().__init__("", id="job", markup=False)
        self.run_id = run_id
        self.lines: list[Content] = []

    def on_mount(self) -> None:
        self.display = False
        app: MoltApp = self.app  # type: ignore[assignment]
        self.set_interval(max(LEAST_S, app.background.interval_s), self.look)
        self.look()

    def look(self) -> None:
        app: MoltApp = self.app  # type: ignore[assignment]
        if self.screen.is_current:
            app.background.ask(self, "job", lambda: app.source.job(self.run_id))

    def on_answer(self, answer: Answer) -> None:
        """A failure keeps the last words: the screen around it tells that nothing is refreshed."""
        if answer.error is not None or answer.value is None:
            return
        lines = job_lines(answer.value, time.time())
        if [line.markup for line in lines] != [line.markup for line in self.lines]:
            self.lines = lines
            self.display = True
            self.update(Content("\n").join(lines))
