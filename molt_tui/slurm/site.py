"""The site profile: what a user of a cluster writes once. TOML in molt-tui's home folder.

runs_root = "/scratch/me/molt-tui/runs"     # on a file system that login and compute nodes share
cluster = "alps"                            # as Slurm names it
[slurm]                                     # defaults below every recipe's own [slurm]
partition = "gpu"
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molt_tui.errors import Refused
from molt_tui.slurm.parse import Node, Partition
from molt_tui.store.home import SITE_FILE
from molt_tui.text import clean

KEYS = ("runs_root", "cluster", "slurm")
SCRATCH_VARIABLES = ("SCRATCH", "SCRATCHDIR", "WORK", "PROJECT", "WORKDIR")


@dataclass(frozen=True)
class Site:
    """What the profile says; everything is empty without one."""

    path: Path
    runs_root: Path | None = None
    cluster: str | None = None
    slurm: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> dict[str, Any]:
        """What lies below a recipe."""
        return {"slurm": self.slurm} if self.slurm else {}


def read_site(home: Path) -> Site:
    """The profile in molt-tui's home folder. Raises Refused with every mistake in it."""
    path = home / SITE_FILE
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Site(path)
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: {error}") from error
    from engine.flags import resolve

    problems = [f"unknown key '{key}'; there are {', '.join(KEYS)}" for key in raw if key not in KEYS]
    table = raw.get("slurm", {})
    problems += [str(p) for p in resolve({"slurm": table}, {})[1]] if isinstance(table, Mapping) else ["slurm must be a table"]
    problems += [f"{key} must be text" for key in ("runs_root", "cluster") if not isinstance(raw.get(key, ""), str)]
    if problems:
        raise Refused("\n".join(f"{path}: {problem}" for problem in problems))
    root = raw.get("runs_root")
    return Site(path, Path(os.path.expanduser(root)) if root else None, raw.get("cluster") or None, dict(table))


def propose(cluster: str, partitions: Sequence[Partition], nodes: Sequence[Node], accounts: Sequence[str],
            environment: Mapping[str, str]) -> str:  # fmt: skip
    """The text of a profile, from what the cluster reports. Nothing is guessed silently: each line says where it is from."""
    partition = best_partition(partitions, nodes)
    lines = ["# Written by `molt-tui doctor --write-site`; change what does not fit."]
    scratch = next(((name, environment[name]) for name in SCRATCH_VARIABLES if environment.get(name)), None)
    root = Path(scratch[1]) / "molt-tui" / "runs" if scratch else Path.home() / "molt-tui" / "runs"
    why = f"from ${scratch[0]}" if scratch else "your home: choose a large file system that compute nodes share"
    lines += [f"runs_root = {json.dumps(str(root))}  # {why}", f"cluster = {json.dumps(cluster)}", "", "[slurm]"]
    if partition is not None:
        kinds = gpu_kinds(partition, nodes)
        lines.append(f"partition = {json.dumps(partition.name)}  # {_describe(partition, nodes)}")
        if kinds:
            kind = max(kinds, key=lambda k: kinds[k])
            lines.append(f"gpus_per_node = {_per_node(partition, nodes, kind)}")
            lines += [f"gpu_type = {json.dumps(kind)}"] if kind != "gpu" else []
    if accounts:
        others = f"  # also: {', '.join(accounts[1:])}" if len(accounts) > 1 else ""
        lines.append(f"account = {json.dumps(accounts[0])}{others}")
    others = [p.name for p in partitions if partition is not None and p.name != partition.name and p.up]
    lines += [f"# other partitions: {', '.join(others)}"] if others else []
    lines.append('# python = "/scratch/me/env/bin/python"    the engine, if the environment that you launch from has none')
    lines.append('# modules = ["cuda/13"]    setup = ["source ~/env.sh"]    container = "/images/molt.sif"')
    return clean("\n".join(lines), lines=True) + "\n"


def best_partition(partitions: Sequence[Partition], nodes: Sequence[Node]) -> Partition | None:
    """The open partition with the most usable GPUs; without GPUs the default one."""
    usable = [p for p in partitions if p.up and p.total_nodes]
    if not usable:
        return None
    return max(usable, key=lambda p: (sum(gpu_kinds(p, nodes).values()), p.default, p.total_nodes))


def gpu_kinds(partition: Partition, nodes: Sequence[Node]) -> dict[str, int]:
    """Usable GPUs of a partition by type."""
    found: dict[str, int] = {}
    for node in nodes:
        if partition.name in node.partitions and node.usable:
            for kind, count in node.gpus.items():
                found[kind] = found.get(kind, 0) + count
    return found


def _per_node(partition: Partition, nodes: Sequence[Node], kind: str) -> int:
    return max((n.gpus.get(kind, 0) for n in nodes if partition.name in n.partitions), default=0)


def _describe(partition: Partition, nodes: Sequence[Node]) -> str:
    from molt_tui.slurm.parse import format_duration

    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(gpu_kinds(partition, nodes).items())) or "no GPUs"
    limit = format_duration(partition.max_time) if partition.max_time is not None else "no time limit"
    return f"{partition.total_nodes} nodes, {kinds}, {limit}"


def write_site(home: Path, text: str) -> Path:
    """Write a proposed profile; an existing one is never replaced. Raises Refused."""
    path = home / SITE_FILE
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path} exists; move it away first, or edit it") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return path
