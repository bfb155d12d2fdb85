"""What would go wrong with a job, said before it is submitted: partition, limits, account, GPUs, disk. Mostly pure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from molt_tui.slurm.architecture import Architecture
from molt_tui.slurm.memory import GIB
from molt_tui.slurm.parse import Association, Node, Partition, format_duration, parse_duration


@dataclass(frozen=True)
class Finding:
    """One problem: the flag to change and a sentence. `refuse`: the job could never run; else it is only a warning."""

    flag: str
    message: str
    refuse: bool = True

    def __str__(self) -> str:
        return f"--{self.flag}: {self.message}" if self.flag else self.message


def check(
    config: Config, partitions: Sequence[Partition], nodes: Sequence[Node], accounts: Sequence[Association] | None
) -> list[Finding]:
    """Everything that can be told from what the cluster reports. `accounts` are the user's, None where nobody knows."""
    partition = _partition(config, partitions)
    if isinstance(partition, Finding):
        return [partition]
    here = [node for node in nodes if partition.name in node.partitions]
    found = [*_state(partition), *_limits(config, partition), *_account(config, partition, accounts)]
    return found + _hardware(config, partition, here)


def _partition(config: Config, partitions: Sequence[Partition]) -> Partition | Finding:
    wanted = config.slurm.partition
    names = [p.name for p in partitions]
    if wanted is None:
        default = next((p for p in partitions if p.default), None)
        return default or Finding("slurm.partition", f"the cluster has no default partition; choose one of {', '.join(names)}")
    for partition in partitions:
        if partition.name == wanted:
            return partition
    from engine.flags import suggest

    near = suggest(wanted, names)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    return Finding("slurm.partition", f"there is no partition '{wanted}'; {hint}")


def _state(partition: Partition) -> list[Finding]:
    if partition.up:
        return []
    return [Finding("slurm.partition", f"{partition.name} takes no jobs now (state {partition.state}); choose another")]


def _limits(config: Config, partition: Partition) -> list[Finding]:
    slurm, found = config.slurm, []
    limit, wanted = partition.max_time, parse_duration(slurm.time)
    if limit is not None and wanted is not None and wanted > limit:
        words = f"{slurm.time} is above the limit of {partition.name}, {format_duration(limit)}"
        found.append(Finding("slurm.time", f"{words}; with less the run goes on over several jobs by itself"))
    if wanted is not None and slurm.signal_seconds >= wanted:
        found.append(Finding("slurm.signal_seconds", f"{slurm.signal_seconds} leaves nothing of {slurm.time}; lower it"))
    most = min(partition.max_nodes or partition.total_nodes, partition.total_nodes)
    if slurm.nodes > most:
        found.append(Finding("slurm.nodes", f"{slurm.nodes} nodes are more than {partition.name} gives one job ({most})"))
    if slurm.nodes < partition.min_nodes:
        found.append(Finding("slurm.nodes", f"{partition.name} wants at least {partition.min_nodes} nodes"))
    return found


def _account(config: Config, partition: Partition, accounts: Sequence[Association] | None) -> list[Finding]:
    account, qos, found = config.slurm.account, config.slurm.qos, []
    names = list(dict.fromkeys(a.account for a in accounts or ()))
    if account is not None and accounts is not None and account not in names:
        known = ", ".join(names) or "none"
        found.append(Finding("slurm.account", f"you have no account '{account}' on this cluster; yours: {known}"))
    elif account is not None and partition.allow_accounts is not None and account not in partition.allow_accounts:
        found.append(
            Finding("slurm.account", f"{account} may not use {partition.name}; allowed: {_few(partition.allow_accounts)}")
        )
    elif account is not None and account in partition.deny_accounts:
        found.append(Finding("slurm.account", f"{account} may not use {partition.name}"))
    if qos is not None and partition.allow_qos is not None and qos not in partition.allow_qos:
        found.append(Finding("slurm.qos", f"{qos} may not be used in {partition.name}; allowed: {_few(partition.allow_qos)}"))
    used = account or next((a.account for a in accounts or () if a.default), None)
    mine = [a for a in accounts or () if a.account == used and a.partition in ("", partition.name)]
    # An association with this very partition comes before the one for all.
    return found + [f for a in sorted(mine, key=lambda a: not a.partition)[:1] for f in _account_limits(config, a)]


def _account_limits(config: Config, association: Association) -> list[Finding]:
    """What the account does not allow: Slurm takes such a job and never starts it."""
    slurm, wanted, found = config.slurm, parse_duration(config.slurm.time), []
    if association.max_time is not None and wanted is not None and wanted > association.max_time:
        words = f"{slurm.time} is above the limit of account {association.account}, {format_duration(association.max_time)}"
        found.append(Finding("slurm.time", f"{words}; with less the run goes on over several jobs by itself"))
    if association.max_nodes is not None and slurm.nodes > association.max_nodes:
        words = f"{slurm.nodes} nodes are more than account {association.account} gives one job ({association.max_nodes})"
        found.append(Finding("slurm.nodes", words))
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _hardware(config: Config, partition: Partition, nodes: Sequence[Node]) -> list[Finding]:
    """Whether enough nodes have what is asked for; those that are down now only delay the job."""
    slurm = config.slurm
    if not nodes:
        return []
    kinds = sorted({kind for node in nodes for kind in node.gpus})
    if slurm.gpus_per_node and not kinds:
        return [Finding("slurm.gpus_per_node", f"the nodes of {partition.name} have no GPUs")]
    if slurm.gpus_per_node and slurm.gpu_type is not None and slurm.gpu_type not in kinds:
        return [Finding("slurm.gpu_type", f"{partition.name} has no '{slurm.gpu_type}'; it has {', '.join(kinds)}")]
    needs = [
        ("slurm.gpus_per_node", slurm.gpus_per_node, "GPUs",
         lambda n: n.gpus.get(slurm.gpu_type, 0) if slurm.gpu_type else sum(n.gpus.values())),
        ("slurm.cpus_per_task", slurm.cpus_per_task or 0, "CPUs", lambda n: n.cpus),
        ("slurm.mem", _megabytes(slurm.mem), "MB of memory", lambda n: n.memory),
    ]  # fmt: skip
    found, fitting = [], list(nodes)
    for flag, amount, unit, of in needs:
        able = [node for node in fitting if of(node) >= amount]
        if len(able) < slurm.nodes:
            most = max(of(node) for node in nodes)
            words = f"{len(able)} nodes of {partition.name} have {amount} {unit}, {slurm.nodes} are needed; the most is {most}"
            found.append(Finding(flag, words))
        else:
            fitting = able
    usable = [node for node in fitting if node.usable]
    if not found and len(usable) < slurm.nodes:
        words = f"only {len(usable)} of {len(fitting)} fitting nodes are in service now; the job waits until {slurm.nodes} are"
        found.append(Finding("slurm.nodes", words, refuse=False))
    return found


def _megabytes(text: str | None) -> int:
    """Slurm's memory size in MB; 0 for none and for `0`, which means all of it."""
    if not text:
        return 0
    digits = text.rstrip("KMGTBkmgtb")
    unit = text[len(digits) :].upper().removesuffix("B") or "M"
    return int(int(digits or 0) * {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[unit])


def checkpoint_bytes(model: Architecture, config: Config) -> int:
    """Bytes of all checkpoints that are kept at once, and of the one being written: fp32 weights and Adam."""
    return model.total * 12 * (config.ckpt.max_num + 1)


def check_disk(config: Config, runs_root: Path, model: Architecture | None) -> list[Finding]:
    """Whether the checkpoints fit where they go; a place that cannot be measured is left out."""
    if model is None:
        return []
    place = Path(os.path.expanduser(config.ckpt.path)) if config.ckpt.path else runs_root
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return []
    needed = checkpoint_bytes(model, config)
    if free >= needed:
        return []
    words = f"{config.ckpt.max_num + 1} checkpoints need {needed / GIB:.0f} GiB, {place} has {free / GIB:.0f} GiB free"
    words += "; lower it, or set --ckpt.path"
    return [Finding("ckpt.max_num", words, refuse=False)]
