"""What acts on several runs at once: the marked ones, else the group or the run under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from molt_tui.lines import RunLine
from molt_tui.tui import format
from molt_tui.tui.screens.controls import RunControls
from molt_tui.tui.screens.dialogs import Confirm

if TYPE_CHECKING:
    from molt_tui.tui.source import NoteLine

NAMED = 6  # runs that a question names one by one


def listed(runs: Sequence[RunLine], hidden: int = 0) -> str:
    """Runs by name, id and state, so that nobody acts on another one than meant."""
    lines = [f"{run.name}  {run.state}  {run.id}" for run in runs[:NAMED]]
    lines += [f"and {len(runs) - NAMED} more"] if len(runs) > NAMED else []
    lines += [f"{hidden} of them {'is' if hidden == 1 else 'are'} hidden by the filter"] if hidden else []
    return "\n".join(lines)


def named(runs: Sequence[RunLine]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs"


class MarkControls(RunControls):
    """Mixin of a screen with `targets`. Every question names its runs; the answer acts on those, whatever moves meanwhile."""

    MARK_CONTROLS: ClassVar[list[BindingType]] = [
        Binding("t", "tag", "Tag", show=False, id="runs.tag"),
        Binding("a", "note", "Note", show=False, id="runs.note"),
        Binding("D", "delete", "Delete", show=False, id="runs.delete"),
    ]

    if TYPE_CHECKING:

        def targets(self) -> list[RunLine]: ...

        def hidden(self, runs: Sequence[RunLine]) -> int: ...

        def ask(self, topic: str, work: Callable[[], object]) -> None: ...

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("tag", "note", "delete") and not self.targets():
            return False
        return super().check_action(action, parameters)

    def _can(self, action: str) -> bool:
        """Stopping acts on all that are chosen."""
        return any(run.active for run in self.targets()) if action == "stop" else super()._can(action)

    def _several(self, doing: str) -> list[RunLine]:
        runs = self.targets()
        if not runs:
            self.notify(f"no run is selected to {doing}", markup=False)
        return runs

    def _act(self, doing: str, work: Callable[[], str]) -> None:
        self.molt.background.act(self.molt, doing, work)

    def action_stop(self) -> None:
        """One run as everywhere; of several, those that are at work, after one question."""
        runs = self.targets()
        live = [run for run in runs if run.active]
        if len(runs) < 2:
            super().action_stop()
            return
        if not live:
            self.notify(f"none of the {len(runs)} runs is at work: nothing to stop", markup=False)
            return

        def decided(answer: bool | None) -> None:
            for run in live if answer else ():
                self.molt.control(run, "stop")

        skipped = f"\n{len(runs) - len(live)} of those chosen ended already" if len(live) < len(runs) else ""
        detail = f"{listed(live, self.hidden(live))}{skipped}\nEach writes a checkpoint first."
        self.molt.push_screen(Confirm(f"Stop {named(live)}?", detail, "Stop them"), decided)

    def action_tag(self) -> None:
        """Edit the tags that all of them have: what is added is given to all, what is taken out is taken from all."""
        from molt_tui.tui.screens.prompts import Ask

        runs = self._several("tag")
        if not runs:
            return
        shared = [tag for tag in runs[0].tags if all(tag in run.tags for run in runs)]
        ids = [run.id for run in runs]

        def decided(text: str | None) -> None:
            if text is None:
                return
            wanted = list(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))
            add, remove = [t for t in wanted if t not in shared], [t for t in shared if t not in wanted]
            if add or remove:
                self._act("tag", lambda: self.molt.source.retag(ids, add, remove))

        about = listed(runs, self.hidden(runs))
        value = "".join(f"{tag}, " for tag in shared)  # the cursor stands where the next tag is typed
        self.molt.push_screen(Ask(f"Tags of {named(runs)}", about, value, "tags, parted by commas"), decided)

    def action_note(self) -> None:
        """Write a remark; what was remarked before is shown above it."""
        runs = self._several("write a note on")
        if len(runs) == 1:
            run_id = runs[0].id
            self.ask("notes", lambda: (runs, self.molt.source.notes(run_id)))
        elif runs:
            self.ask_note(runs, ())

    def ask_note(self, runs: Sequence[RunLine], before: Sequence[NoteLine]) -> None:
        from molt_tui.tui.screens.prompts import Ask

        ids = [run.id for run in runs]

        def decided(text: str | None) -> None:
            if text and text.strip():
                self._act("note", lambda: self.molt.source.note(ids, text))

        history = [f"{format.day(n.t)} {n.who}  {n.action}: {n.text}" for n in before[-NAMED:]]
        about = "\n".join(history) if len(runs) == 1 else listed(runs, self.hidden(runs))
        self.molt.push_screen(Ask(f"Note on {named(runs)}", about, "", "a remark for everyone who sees the run"), decided)

    def action_delete(self) -> None:
        """Delete for good, after a question that names every run; refused while one of them is at work."""
        runs = self._several("delete")
        live = [run for run in runs if run.active]
        if live:
            self.notify(f"{named(live)} {'is' if len(live) == 1 else 'are'} at work: stop with x before you delete",
                        severity="warning", markup=False)  # fmt: skip
            return
        if not runs:
            return
        ids = [run.id for run in runs]

        def decided(answer: bool | None) -> None:
            if answer:
                self._act("delete", lambda: self.molt.source.delete(ids))

        lost = [run.host or "its host" for run in runs if run.state == "lost"]
        warn = f"\nLost: make sure that nothing of it runs on {', '.join(sorted(set(lost)))} any more." if lost else ""
        what = "Run directory, checkpoints in it and every number go for good."
        detail = f"{listed(runs, self.hidden(runs))}\n{what}{warn}"
        self.molt.push_screen(Confirm(f"Delete {named(runs)}?", detail, "Delete"), decided)
