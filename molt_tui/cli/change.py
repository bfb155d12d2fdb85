"""Commands that change a run: stop, pause, resume, checkpoint, evaluate, set, note, tag."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from molt_tui.cli.app import Json, Reference, app

ANSWER_S = 30.0

Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="seconds to wait for the answer")]


def _command(reference: str, name: str, args: dict[str, Any], timeout: float, as_json: bool) -> None:
    """Send one command and report the answer: exit code 0 done, 1 not done, or no answer yet."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import control

    with fresh_run(reference) as (_, found):
        pending = control.send(found, name, args)
    answer = pending.wait(timeout, over=lambda: control.ended(found))
    if answer is None:
        message = f"no answer yet after {timeout:g} s; the command waits in the run's inbox (run is {found.state})"
        if control.ended(found):
            message = "the run ended before it answered"
    else:
        message = answer.message
    if as_json:
        output.emit_json({"run": found.id, "command": name, "id": pending.id, "answered": answer is not None,
                          "ok": answer.ok if answer else None, "message": message})  # fmt: skip
    else:
        output.say(f"{found.id}: {message}")
    if answer is None or not answer.ok:
        raise typer.Exit(1)


@app.command()
def stop(
    run: Reference,
    after_step: Annotated[
        bool, typer.Option("--after-step", help="end after the step that is running, as completed work")
    ] = False,
    kill: Annotated[bool, typer.Option("--kill", help="do not wait for a checkpoint: end its processes now")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, help="seconds before its supervisor is signalled")] = 60.0,
    as_json: Json = False,
) -> None:
    """Stop a run after a checkpoint. It can be continued with `resume`."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.errors import MoltError
    from molt_tui.services import control

    if after_step:
        _command(run, "stop_after_step", {}, timeout, as_json)
        return
    with fresh_run(run) as (store, found):
        if found.cluster != "local":
            from molt_tui.services import slurm
            from molt_tui.slurm.commands import Slurm

            slurm.stop(store, Slurm(), found, command_s=timeout, kill=kill, say=output.say)
    if found.cluster == "local" and not control.stop(found, command_s=0.0 if kill else timeout, kill=kill, say=output.say):
        where = f" on {found.supervisor_host}" if found.supervisor_host else ""
        raise MoltError(f"{found.id} has not ended yet; its supervisor{where} is still at work (--kill ends it at once)")
    with fresh_run(found.id) as (_, after):
        if as_json:
            output.emit_json({"run": after.id, "state": after.state, "step": after.step})
        else:
            why = f": {after.detail}" if after.detail else ""
            output.say(f"{after.id} is {after.state} at step {after.step if after.step is not None else '-'}{why}")


@app.command()
def pause(run: Reference, timeout: Timeout = ANSWER_S, as_json: Json = False) -> None:
    """Hold a run: nothing new starts until `resume`."""
    _command(run, "pause", {}, timeout, as_json)


@app.command()
def checkpoint(run: Reference, timeout: Timeout = 120.0, as_json: Json = False) -> None:
    """Save a checkpoint now."""
    _command(run, "checkpoint", {}, timeout, as_json)


@app.command()
def evaluate(run: Reference, timeout: Timeout = 300.0, as_json: Json = False) -> None:
    """Evaluate the current policy on the held-out prompts."""
    _command(run, "evaluate", {}, timeout, as_json)


@app.command(name="set")
def set_knob(
    run: Reference,
    assignments: Annotated[list[str], typer.Argument(metavar="key=value...", help="live settings, e.g. actor.adam.lr=1e-6")],
    timeout: Timeout = ANSWER_S,
    as_json: Json = False,
) -> None:
    """Change a live setting of a run."""
    from engine.config import LIVE_KNOBS
    from molt_tui.errors import Refused

    args = {}
    for assignment in assignments:
        key, equals, value = assignment.removeprefix("--").partition("=")
        if not equals or not value:
            raise Refused(f"give key=value, got {assignment!r}")
        if key not in LIVE_KNOBS:
            raise Refused(f"{key} cannot be changed while a run is live; these can: {', '.join(sorted(LIVE_KNOBS))}")
        args[key] = value
    _command(run, "set", args, timeout, as_json)


@app.command()
def resume(run: Reference, timeout: Timeout = ANSWER_S, as_json: Json = False) -> None:
    """Continue a run. A paused one goes on; one that ended starts its next attempt from the last checkpoint."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import launch

    with fresh_run(run) as (_, found):
        pass
    if not found.final and found.attempts:
        _command(found.id, "resume", {}, timeout, as_json)
        return
    attempt = launch.start_next_attempt(found)
    if as_json:
        output.emit_json({"run": found.id, "attempt": attempt})
    else:
        output.say(f"{found.id}: attempt {attempt} starts; watch it in `molt-tui`, or with `molt-tui logs {found.id} -f`")


@app.command()
def requeue(run: Reference, as_json: Json = False) -> None:
    """Submit a run on Slurm again. It goes on from its newest checkpoint."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import slurm
    from molt_tui.slurm.commands import Slurm
    from molt_tui.slurm.site import read_site

    with fresh_run(run) as (store, found):
        receipt = slurm.requeue(store, Slurm(), read_site(store.home.path), found, say=output.say)
    if as_json:
        output.emit_json({"run": found.id, "submission": receipt.number, "state": receipt.state, "job_id": receipt.job_id})
    if receipt.state != "submitted":
        raise typer.Exit(1)


@app.command()
def stacks(run: Reference) -> None:
    """Print the stacks of a running Slurm job, on every node."""
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import slurm
    from molt_tui.slurm.commands import Slurm
    from molt_tui.text import clean

    with fresh_run(run) as (store, found):
        text = slurm.dump_stacks(store, Slurm(), found)
    print(clean(text, lines=True))


@app.command()
def note(run: Reference, text: Annotated[list[str], typer.Argument(metavar="TEXT...")], as_json: Json = False) -> None:
    """Add a note to a run."""
    _annotate(run, [("note", " ".join(text))], as_json)


@app.command()
def tag(
    run: Reference,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...")],
    remove: Annotated[bool, typer.Option("--remove", "-d", help="take the tags away")] = False,
    as_json: Json = False,
) -> None:
    """Tag a run, or take tags away."""
    _annotate(run, [("untag" if remove else "tag", text) for text in tags], as_json)


def _annotate(reference: str, lines: list[tuple[str, str]], as_json: bool) -> None:
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import notes
    from molt_tui.services.runs import get_run

    with fresh_run(reference) as (store, found):
        for action, text in lines:
            notes.add(store, found, action, text)
        after = get_run(store, found.id)
    if as_json:
        output.emit_json({"run": after.id, "tags": list(after.tags)})
    elif any(action == "note" for action, _ in lines):
        output.say(f"{after.id}: note added; `molt-tui show {after.id}` shows it")
    else:
        output.say(f"{after.id}: tags {', '.join(after.tags) or 'none'}")
