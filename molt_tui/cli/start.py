"""Commands that start something: launch, demo, recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from molt_tui.cli.app import Json, Reference, app
from molt_tui.cli.screen import has_terminal, open_screen

if TYPE_CHECKING:
    from engine.config import Config
    from molt_tui.services.launch import Plan

recipes = typer.Typer(help="The recipes that come with molt-tui, and your own by path.", rich_markup_mode=None,
                      no_args_is_help=True)  # fmt: skip
app.add_typer(recipes, name="recipes")

HOLD_S = 3.0  # how long a recorded run without an end goes on where nobody looks at it
DOTTED = {"allow_extra_args": True, "ignore_unknown_options": True}


On = Annotated[str, typer.Option("--on", help="where: local or slurm")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would be started and make nothing")]
Watch = Annotated[bool, typer.Option("--watch", help="open the run's dashboard, or print its progress")]
Name = Annotated[str | None, typer.Option("--name", help="name of the run  [default: the recipe's]")]
Group = Annotated[str | None, typer.Option("--group", help="group that the run belongs to")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=64, help="this many runs, train.seed counting up")]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="FLAG=VALUES", help="one run per value: a,b,c or a range low..high, log:low..high; repeat"
                 " it for a grid"),
]  # fmt: skip
Random = Annotated[int | None, typer.Option("--random", min=1, help="draw this many combinations of the sweep")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="tag of the run; may be repeated")]


@app.command(context_settings=DOTTED, options_metavar="[OPTIONS] [--section.setting VALUE ...]")
def launch(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="shipped name or path of a TOML file")],
    on: On = "local",
    dry_run: DryRun = False,
    watch: Watch = False,
    name: Name = None,
    group: Group = None,
    seeds: Seeds = 1,
    sweep: Sweep = None,
    random: Random = None,
    tags: Tags = None,
    as_json: Json = False,
) -> None:
    """Start a run of a recipe. Every setting is a flag: --actor.adam.lr 1e-6 --algo.advantage.estimator grpo."""
    from molt_tui.errors import Refused

    if recipe.startswith("-"):
        raise Refused(f"name the recipe before the settings: molt-tui launch RECIPE {recipe} ...")
    more = {"name": name, "group": group, "seeds": seeds, "tags": tags or (), "axes": _axes(sweep), "samples": random}
    _launch(recipe, context.args, on, more, dry_run=dry_run, watch=watch, as_json=as_json)


@app.command(context_settings=DOTTED, options_metavar="[OPTIONS] [--section.setting VALUE ...]")
def relaunch(
    context: typer.Context,
    run: Reference,
    on: Annotated[str | None, typer.Option("--on", help="local or slurm  [default: where the run was]")] = None,
    dry_run: DryRun = False,
    watch: Watch = False,
    name: Name = None,
    group: Group = None,
    seeds: Seeds = 1,
    sweep: Sweep = None,
    random: Random = None,
    tags: Tags = None,
    as_json: Json = False,
) -> None:
    """Start a new run with the settings and the agent of an old one, changed by flags. `resume` goes on with the old one."""
    from molt_tui.cli.session import fresh_run

    with fresh_run(run) as (_, parent):
        pass
    where = on or ("local" if parent.cluster == "local" else "slurm")
    more = {"name": name, "group": group, "seeds": seeds, "tags": tags or (), "axes": _axes(sweep), "samples": random,
            "parent": parent}  # fmt: skip
    _launch(parent.id, context.args, where, more, dry_run=dry_run, watch=watch, as_json=as_json)


def _axes(specs: list[str] | None) -> list[Any]:
    from molt_tui.services.sweep import parse_axis

    return [parse_axis(spec) for spec in specs or ()]


def _launch(recipe: str, flags: list[str], on: str, more: dict[str, Any], *, dry_run: bool, watch: bool, as_json: bool) -> None:
    from molt_tui.cli import output
    from molt_tui.errors import Refused
    from molt_tui.services import launch as service
    from molt_tui.store.home import find_home

    if on not in ("local", "slurm"):
        raise Refused(f"--on takes local or slurm, got '{on}'")
    home = find_home()
    if on == "slurm":
        from molt_tui.cli.on_slurm import launch_on_slurm

        ids = launch_on_slurm(home, recipe, flags, dry_run=dry_run, as_json=as_json, **more)
        if watch and ids:
            _watch(ids[0], home.runs_root, screen=has_terminal() and not as_json)
        return
    plan = service.make_plan(home, recipe, flags, **more)
    if plan.warning:
        output.say(f"warning: {plan.warning}")
    if dry_run:
        _print_plan(plan, as_json)
        return
    home.create()
    ids = service.launch(plan, say=output.say)
    if as_json:
        output.emit_json([{"id": run_id, "path": str(plan.runs_root / run_id), "group": plan.group} for run_id in ids])
    elif not watch:
        print("\n".join(ids))
    if watch:
        _watch(ids[0], plan.runs_root, screen=has_terminal() and not as_json)


@app.command(context_settings=DOTTED, options_metavar="[OPTIONS] [--section.setting VALUE ...]")
def stage(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="shipped name or path of a TOML file")],
    to: Annotated[Path | None, typer.Option("--to", help="folder that compute nodes can read")] = None,
    check: Annotated[bool, typer.Option("--check", help="copy nothing: ask a compute node which of its paths it lacks")] = False,
    as_json: Json = False,
) -> None:
    """Copy a recipe's model and data for nodes without network. Prints the flags to launch with."""
    from molt_tui.cli import output
    from molt_tui.errors import Refused
    from molt_tui.services import slurm as service
    from molt_tui.services.launch import make_plan
    from molt_tui.slurm.site import read_site
    from molt_tui.store.home import find_home

    if (to is None) != check:
        raise Refused("give --to DIR, or --check to ask a compute node")
    home = find_home()
    plan = make_plan(home, recipe, context.args, base=read_site(home.path).base)
    config = service.with_interpreter(plan.runs[0].config)
    if to is None:
        _check_on_node(config, plan.runs_root, as_json)
        return
    flags = service.stage(config, to.expanduser().absolute())
    if as_json:
        output.emit_json(flags)
    else:
        print("\n".join(flags) or "nothing to stage: the model and the prompts are made in code")


def _check_on_node(config: Config, runs_root: Path, as_json: bool) -> None:
    """Print the paths that a compute node does not see; exit code 1 when there are any."""
    from molt_tui.cli import output
    from molt_tui.services import cluster as service
    from molt_tui.slurm.commands import Slurm

    paths = service.needed_paths(config, runs_root)
    missing = service.paths_missing_on_node(Slurm(), config, paths)
    if as_json:
        output.emit_json(missing)
    else:
        print(
            "\n".join(f"a compute node does not see {path}" for path in missing) or f"a compute node sees all {len(paths)} paths"
        )
    if missing:
        raise typer.Exit(1)


def _print_plan(plan: Plan, as_json: bool) -> None:
    from engine.wire import to_wire
    from molt_tui.cli import output

    if as_json:
        runs = [{"name": run.name, "settings": to_wire(run.settings)} for run in plan.runs]
        output.emit_json({"recipe": plan.recipe.name, "path": str(plan.recipe.path), "group": plan.group, "runs": runs,
                          "command": plan.command, "warnings": [plan.warning] if plan.warning else []})  # fmt: skip
        return
    output.pairs([("recipe", plan.recipe.path), ("group", plan.group), ("command", " ".join(plan.command))])
    print()
    output.pairs([("run", plan.runs[0].name)])
    output.table(("SETTING", "VALUE"), [(key, _shown(value)) for key, value in plan.runs[0].settings.items()])
    if len(plan.runs) > 1:
        print()
        output.table(("RUN", "SETTINGS OF ITS OWN"), [(run.name, " ".join(run.flags)) for run in plan.runs])
    output.say("dry run: nothing was made or started")


def _shown(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _watch(run_id: str, runs_root: Path, *, screen: bool) -> None:
    """The dashboard or plain lines until the run ends; exit code 0 only when it completed."""
    from engine.console import describe
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_run
    from molt_tui.services import health
    from molt_tui.services import launch as service

    if screen:
        if code := open_screen(run_id):
            raise typer.Exit(code)
    else:
        try:
            for event in service.follow(runs_root / run_id):
                line = describe(event)
                if line:
                    output.say(line)
        except KeyboardInterrupt:
            output.say("")  # the run is not a child of this terminal
    with fresh_run(run_id) as (store, run):
        last = health.findings(store, run, at=run.step) if run.step is not None and not screen else []
    if screen and not run.final:
        return  # leaving the screen is no failure; it has said that the run goes on
    if not run.final:
        output.say(f"{run_id} goes on without this screen; `molt-tui` shows it again, `molt-tui stop {run_id}` ends it")
    elif run.state != "completed":
        output.say(f"{run_id} is {run.state}: {run.last_error or run.detail or 'see molt-tui show ' + run_id}")
    else:
        output.say(f"{run_id} is completed after {run.step} steps")
    for verdict in (v for i, v in enumerate(last) if i == 0 or v.alarming):  # as of the step, not of how the run ended
        output.say(f"at step {run.step}: {verdict.text}")
    if run.state != "completed":
        raise typer.Exit(1)


@app.command(context_settings=DOTTED, options_metavar="[OPTIONS] [--section.setting VALUE ...]")
def demo(
    context: typer.Context,
    headless: Annotated[bool, typer.Option("--headless", help="print progress instead of the dashboard")] = False,
    scenario: Annotated[str | None, typer.Option("--scenario", help="play a recorded run; needs no engine")] = None,
    speed: Annotated[float | None, typer.Option("--speed", help="of a recorded run: 1 is real time; it lasts a minute")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="say which recorded runs there are and what each shows")] = False,
    as_json: Json = False,
) -> None:
    """Train a tiny model, or play a recorded run. The demo recipe takes a few minutes and needs no GPU."""
    if list_them:
        _list_scenarios(as_json)
        return
    from molt_tui.cli import output
    from molt_tui.errors import Refused
    from molt_tui.services import launch as service
    from molt_tui.store.home import find_home

    home = find_home()
    if scenario is not None:
        from molt_tui.services import demo as player

        if context.args:
            raise Refused("a recorded run takes no settings")
        screen = has_terminal() and not headless
        run_id = player.start(home.create(), scenario, speed, hold_s=None if screen else HOLD_S)
    elif speed is not None:
        raise Refused("--speed is for recorded runs: add --scenario NAME")
    else:
        plan = service.make_plan(home, "demo", context.args)
        home.create()
        run_id = service.launch(plan, say=output.say)[0]
    print(run_id, flush=True)
    _watch(run_id, home.runs_root, screen=has_terminal() and not headless)


def _list_scenarios(as_json: bool) -> None:
    from molt_tui.cli import output
    from molt_tui.scenarios.archive import load, names

    found = [load(name) for name in names()]
    if as_json:
        output.emit_json([{"name": s.name, "title": s.title, "about": s.about, "verdict": s.verdict} for s in found])
        return
    output.table(("SCENARIO", "VERDICT", "WHAT IT SHOWS"), [(s.name, s.verdict, f"{s.title}. {s.about}") for s in found])
    output.say("play one with `molt-tui demo --scenario NAME`")


@recipes.command(name="list")
def list_recipes(as_json: Json = False) -> None:
    """List the shipped recipes."""
    from molt_tui.cli import output
    from molt_tui.services.recipes import list_recipes as shipped

    found = shipped()
    if as_json:
        output.emit_json([{"name": r.name, "title": r.title, "task": r.task, "model": r.model, "hardware": r.hardware,
                           "path": str(r.path)} for r in found])  # fmt: skip
        return
    rows = [(r.name, r.task, r.model, r.hardware, r.title) for r in found]
    output.table(("RECIPE", "TASK", "MODEL", "HARDWARE", "TITLE"), rows)


@recipes.command()
def show(name: Annotated[str, typer.Argument(metavar="RECIPE")], as_json: Json = False) -> None:
    """Show what a recipe sets."""
    from engine.wire import to_wire
    from molt_tui.cli import output
    from molt_tui.services import recipes as service

    settings = service.settings_of(name)
    if as_json:
        output.emit_json(to_wire({"name": name, "settings": settings}))
    else:
        output.table(("SETTING", "VALUE"), [(key, _shown(value)) for key, value in settings.items()])


@recipes.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE...]", help="all shipped ones without")] = None,
    as_json: Json = False,
) -> None:
    """Validate recipes; nothing is started."""
    from molt_tui.cli import output
    from molt_tui.services import recipes as service

    found = [service.check_recipe(name) for name in names] if names else service.list_recipes(check=True)
    if as_json:
        output.emit_json([{"name": r.name, "ok": not r.problems, "problems": list(r.problems)} for r in found])
    else:
        output.table(("RECIPE", "OK", "PROBLEM"),
                     [(r.name, "no" if r.problems else "yes", p) for r in found for p in (r.problems or ("",))])  # fmt: skip
    if any(r.problems for r in found):
        raise typer.Exit(1)
