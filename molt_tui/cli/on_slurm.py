"""`launch --on slurm`: the plan with its batch script and memory table, or the submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from molt_tui.cli import output

if TYPE_CHECKING:
    from molt_tui.services.launch import Plan
    from molt_tui.services.slurm import MemoryTable
    from molt_tui.store.home import Home


def launch_on_slurm(home: Home, recipe: str, flags: Sequence[str], *, dry_run: bool, as_json: bool, **more: Any) -> list[str]:
    """Submit, or with `dry_run` only show; returns the run ids. Exits with 1 when Slurm gave no answer to a submission."""
    from molt_tui.services import slurm as service
    from molt_tui.slurm.commands import Slurm
    from molt_tui.store.database import open_store

    plan, site = service.make_plan(home, recipe, flags, **more)
    if dry_run:
        show_plan(plan, as_json)
        return []
    with open_store(home) as store:
        done = service.launch(store, Slurm(), site, plan, say=output.say)
    if as_json:
        output.emit_json([{"id": d.run_id, "path": str(d.path), "group": plan.group, "job_id": d.receipt.job_id,
                           "submission": d.receipt.state} for d in done])  # fmt: skip
    else:
        print("\n".join(d.run_id for d in done))
    if any(d.receipt.state != "submitted" for d in done):
        raise typer.Exit(1)
    return [d.run_id for d in done]


def show_plan(plan: Plan, as_json: bool) -> None:
    """What would be submitted; Slurm is asked nothing, so that it also works away from the cluster."""
    from engine.wire import to_wire
    from molt_tui.services.slurm import RUN_PLACEHOLDER, memory_table, with_interpreter
    from molt_tui.slurm.render import render

    config = plan.runs[0].config
    script = render(with_interpreter(config), plan.runs_root / RUN_PLACEHOLDER, RUN_PLACEHOLDER, 1)
    table = memory_table(config)
    if as_json:
        runs = [{"name": run.name, "settings": to_wire(run.settings)} for run in plan.runs]
        memory = [vars(part) for part in table.found.parts] if table and table.found else None
        fits = table.found.fits if table and table.found else None
        output.emit_json({"recipe": plan.recipe.name, "path": str(plan.recipe.path), "group": plan.group, "runs": runs,
                          "script": script, "memory": memory, "fits": fits})  # fmt: skip
        return
    output.pairs([("recipe", plan.recipe.path), ("group", plan.group), ("runs", ", ".join(run.name for run in plan.runs))])
    print()
    output.table(("SETTING", "VALUE"), [(key, _shown(value)) for key, value in plan.runs[0].settings.items()])
    if len(plan.runs) > 1:
        print()
        output.table(("RUN", "SETTINGS OF ITS OWN"), [(run.name, " ".join(run.flags)) for run in plan.runs])
    print(f"\n{script}")
    if table is not None:
        show_memory(table)
    output.say("dry run: nothing was made or submitted")


def show_memory(table: MemoryTable) -> None:
    """The memory of one trainer GPU and one sampler GPU, and what would make it fit."""
    if table.found is None:
        output.say(f"no memory estimate: {table.unknown}")
        return
    found = table.found
    output.table(
        ("WHERE", "PART", "GIB", "NOTE"), [(p.where, p.part, f"{p.gib:.1f}", p.note) for p in found.parts], right=("GIB",)
    )
    for name, gib, fits in (
        ("trainer", found.trainer_gib, found.trainer_fits),
        ("sampler", found.sampler_gib, found.sampler_fits),
    ):
        print(f"{name}: {gib:.1f} of {found.gpu_gib:.0f} GiB on each GPU, {'fits' if fits else 'does NOT fit'} (estimate)")
    for flag in table.flags:
        print(f"would fit with: {flag}")


def _shown(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
