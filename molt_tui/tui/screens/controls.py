"""The commands that act on one run, the same on every screen that has one selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding

from molt_tui.tui import clipboard, format
from molt_tui.tui.screens.dialogs import Confirm

if TYPE_CHECKING:
    from molt_tui.tui.app import MoltApp
    from molt_tui.tui.source import RunLine


class RunControls:
    """Mixin of a screen with a `selected` run. Commands name the run they act on; stopping asks first."""

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
        if run is not None and not run.active and run.state not in ("completed", "draft"):
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
