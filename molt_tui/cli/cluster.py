"""`molt-tui cluster`: what the Cluster screen shows."""

from __future__ import annotations

from typing import Any

import typer

from molt_tui.cli.app import Json, app


@app.command()
def cluster(as_json: Json = False) -> None:
    """Show partitions, free GPUs and your jobs with their runs. Exit code 1 when Slurm never answered."""
    from molt_tui.cli import output
    from molt_tui.cli.session import fresh_store
    from molt_tui.services.cluster import overviews
    from molt_tui.slurm.commands import Slurm
    from molt_tui.slurm.site import read_site

    with fresh_store() as store:
        found = overviews(store, Slurm(), read_site(store.home.path))
    if as_json:
        output.emit_json([_as_json(one) for one in found])
    else:
        for number, one in enumerate(found):
            if number:
                print()
            _print(one)
    for one in found:
        if one.error:
            seen = f" (shown as of {output.clock(one.answered)})" if one.answered is not None else ""
            output.say(f"{one.cluster or 'no cluster'}: {one.error}{seen}")
    if found[0].answered is None:
        raise typer.Exit(1)


def _as_json(one: Any) -> dict[str, Any]:
    partitions = [{"name": p.name, "default": p.default, "state": p.state, "max_time": p.max_time, "nodes": p.nodes,
                   "by_state": p.by_state, "gpus": p.gpus, "free_gpus": p.free_gpus, "out": dict(p.out)}
                  for p in one.partitions]  # fmt: skip
    jobs = [{"run": j.run, "job_id": j.job_id, "state": j.state, "words": j.words, "nodes": j.nodes, "node_list": j.node_list,
             "start": j.start, "end": j.end} for j in one.jobs]  # fmt: skip
    return {"cluster": one.cluster, "here": one.here, "answered": one.answered, "error": one.error, "partitions": partitions,
            "jobs": jobs}  # fmt: skip


def _print(one: Any) -> None:
    from molt_tui.cli import output
    from molt_tui.slurm.parse import format_duration

    output.pairs([("cluster", one.cluster + ("" if one.here else "  (as last seen; not this machine's)")),
                  ("as of", output.clock(one.answered) if one.answered is not None else None)])  # fmt: skip
    rows = [(p.name + (" *" if p.default else ""), p.state, "no limit" if p.max_time is None else format_duration(p.max_time),
             ", ".join(f"{kind} {p.free_gpus.get(kind, 0)}/{count}" for kind, count in sorted(p.gpus.items())),
             ", ".join(f"{count} {state}" for state, count in p.by_state.items())) for p in one.partitions]  # fmt: skip
    if rows:
        output.table(("PARTITION", "STATE", "LIMIT", "GPUS FREE", "NODES"), rows)
    jobs = [(j.job_id, j.state, j.run, j.node_list or j.words) for j in one.jobs]
    if jobs:
        print()
        output.table(("JOB", "STATE", "RUN", "WHERE, OR WHY NOT"), jobs)
