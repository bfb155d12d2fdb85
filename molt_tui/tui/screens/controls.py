"""The commands that act on one run, the same on every screen that has one selected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import ActiveBinding, Binding

from molt_tui.tui import clipboard, format
from molt_tui.tui.screens.dialogs import Confirm

if TYPE_CHECKING:
    from molt_tui.tui.app import MoltApp
    from molt_tui.tui.source import RunLine


LIVE = frozenset({"starting", "running", "paused"})


def goes_on(run: RunLine) -> bool:
    """Whether a pause can end, or a new attempt can start: from a checkpoint, as a new job, or of a run that vanished."""
    if run.active:
        return run.state == "paused"
    again = run.last_checkpoint is not None or run.job_id is not None or run.state == "lost"
    return again and run.state not in ("completed", "draft")


# What each control can act on; a key that cannot act is not offered.
CAN: dict[str, Callable[[RunLine], bool]] = {
    "pause": lambda run: run.state in LIVE or goes_on(run),
    "stop": lambda run: run.active,
    "checkpoint": lambda run: run.state in LIVE,
    "stacks": lambda run: run.active and run.state != "queued" and run.job_id is not None,
    "relaunch": lambda run: True,
    "copy": lambda run: True,
}
CHANGING = frozenset({"pause", "stop", "checkpoint", "tag", "note", "delete", "launch", "relaunch"})


class RunControls:
    """Mixin of a screen with a `selected` run. Commands name the run they act on; stopping asks first. The screen calls
    `offer` whenever the run or its state may have changed."""

    CONTROLS: ClassVar[list[Binding]] = [
        Binding("p", "pause", "Pause", id="run.pause", tooltip="pause, go on, or start the next attempt"),
        Binding("x", "stop", "Stop", id="run.stop"),
        Binding("r", "relaunch", "Relaunch", id="run.relaunch"),
        Binding("c", "checkpoint", "Checkpoint", show=False, id="run.checkpoint"),
        Binding("y", "copy", "Copy id", show=False, id="run.copy"),
        Binding("C", "cluster", "Cluster", show=False, id="run.cluster"),
        Binding("S", "stacks", "Stack dump (Slurm)", show=False, id="run.stacks"),
    ]

    if TYPE_CHECKING:
        molt: MoltApp

        @property
        def selected(self) -> RunLine | None: ...

        def notify(self, message: str, **options: Any) -> None: ...

        def refresh_bindings(self) -> None: ...

    _offered: Any = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can act on the selected run is offered; nothing that changes or starts one in read-only mode."""
        if action in CHANGING and self.molt.chosen.read_only:
            return False
        return self._can(action) if action in CAN else super().check_action(action, parameters)  # type: ignore[misc]

    def _can(self, action: str) -> bool:
        run = self.selected
        return run is not None and CAN[action](run)

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The key that pauses says what it does to this run."""
        found = super().active_bindings  # type: ignore[misc]
        run = self.selected
        if run is not None and goes_on(run):
            for key, active in found.items():
                if active.binding.action == "pause":
                    found[key] = active._replace(binding=replace(active.binding, description="Go on"))
        return found

    def offer(self) -> None:
        """Draw the footer again, but only when other keys act now."""
        run = self.selected
        now = run is not None and goes_on(run), [self._can(action) for action in CAN]
        if now != self._offered:
            self._offered = now
            self.refresh_bindings()

    def _target(self, doing: str) -> RunLine | None:
        """The selected run if a command can reach it; says why not otherwise."""
        run = self.selected
        if run is None:
            self.notify(f"no run is selected to {doing}", markup=False)
        elif not run.active:
            self.notify(f"{run.name} is {run.state}: nothing to {doing}", markup=False)
            return None
        return run

    def action_pause(self) -> None:
        """Pause, go on, or start the next attempt of a run that ended before its time."""
        run = self.selected
        if run is not None and not run.active and goes_on(run):
            where = f"{run.state} at step {format.progress(run.step, run.max_steps)}"
            start = f"A new attempt starts from the checkpoint of step {run.last_checkpoint}."
            if run.last_checkpoint is None:
                start = "No checkpoint is known: it can at best start again from step 0."
            detail = f"{run.id}\n{where}. {start}"
            self._ask_first(run, "resume", f"Go on with {run.name}?", detail, "Go on")
            return
        run = self._target("pause")
        if run is not None:
            self.molt.control(run, "resume" if run.state == "paused" else "pause")

    def action_checkpoint(self) -> None:
        run = self._target("checkpoint")
        if run is not None:
            self.molt.control(run, "checkpoint")

    def action_stop(self) -> None:
        run = self._target("stop")
        if run is None:
            return
        detail = f"{run.id}\nstep {format.progress(run.step, run.max_steps)}, {run.state}. It writes a checkpoint first."
        self._ask_first(run, "stop", f"Stop {run.name}?", detail, "Stop it")

    def action_relaunch(self) -> None:
        """A new run with this one's settings, to be changed in the form first."""
        run = self.selected
        if run is not None:
            self.molt.open_form(parent=run.id)

    def action_cluster(self) -> None:
        self.molt.open_cluster()

    def action_stacks(self) -> None:
        """What every process of a Slurm run is doing, from every node."""
        from molt_tui.tui.screens.stacks import StacksScreen

        run = self._target("dump the stacks of")
        if run is not None:
            self.molt.go_to(StacksScreen(run.id, run.name))

    def _ask_first(self, run: RunLine, command: str, question: str, detail: str, yes: str) -> None:
        """Send a command only after a yes; the run is the one that the question named, wherever the cursor is by then."""

        def decided(answer: bool | None) -> None:
            if answer:
                self.molt.control(run, command)

        self.molt.push_screen(Confirm(question, detail, yes), decided)

    def action_copy(self) -> None:
        run = self.selected
        if run is not None:
            clipboard.copy(self.molt, run.id, "run id")
