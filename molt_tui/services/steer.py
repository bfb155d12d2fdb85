"""One command to one run wherever it runs, and what became of it in a sentence: what the screens call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from molt_tui.errors import Refused
from molt_tui.services import control, launch
from molt_tui.services.runs import Run
from molt_tui.store.database import Store

ANSWER_S = 10.0


def steer(store: Store, run: Run, name: str, args: Mapping[str, Any] | None = None) -> str:
    """Stop, resume, requeue or any command of the inbox. Raises Refused or MoltError with the reason."""
    on_slurm = run.cluster != "local"
    if name == "stop":
        gone = _stop_job(store, run) if on_slurm else control.stop(run)
        return f"{run.name} has stopped" if gone else f"{run.name} was asked to stop and has not ended yet"
    if name == "requeue" or (name == "resume" and run.final and on_slurm):
        return _requeue(store, run)
    if name == "resume" and run.final:
        return f"{run.name}: attempt {launch.start_next_attempt(run)} has begun"
    answer = control.send(run, name, dict(args or {})).wait(ANSWER_S)
    if answer is None:
        return f"{name} was sent to {run.name}; it has not answered yet"
    return f"{run.name}: {answer.message}" if answer.ok else f"{run.name} refused to {name}: {answer.message}"


def stacks(store: Store, run: Run) -> str:
    """What every process of a Slurm run is doing. Raises Refused for a local run."""
    from molt_tui.services import slurm
    from molt_tui.slurm.commands import Slurm

    if run.cluster == "local":
        raise Refused(f"{run.id} runs on this machine, not on Slurm; `py-spy dump` shows the stack of one of its processes")
    return slurm.dump_stacks(store, Slurm(), run)


def _stop_job(store: Store, run: Run) -> bool:
    from molt_tui.services import slurm
    from molt_tui.slurm.commands import Slurm

    said: list[str] = []
    slurm.stop(store, Slurm(), run, say=said.append)
    return run.state == "queued" or not any(line.startswith("scancel") for line in said)


def _requeue(store: Store, run: Run) -> str:
    from molt_tui.services import slurm
    from molt_tui.slurm.commands import Slurm
    from molt_tui.slurm.site import read_site

    said: list[str] = []
    slurm.requeue(store, Slurm(), read_site(store.home.path), run, say=said.append)
    return said[-1]
