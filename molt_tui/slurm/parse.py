"""Text of Slurm's commands to records. Pure; unknown fields and damaged lines are left out, never guessed.

Text formats read alike from Slurm 20 to 25, its JSON does not. Times are naive local times as Slurm prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

# Free text comes last: a reason may hold spaces, commas and even the separator.
SQUEUE_FORMAT = "%A|%T|%P|%D|%N|%S|%e|%L|%M|%V|%k|%j|%r"
SINFO_FORMAT = "%P|%a|%l|%D|%T|%G|%N"
ASSOCIATION_FIELDS = ("DefaultAccount", "Account", "Partition", "MaxWall", "MaxNodes")
SACCT_FIELDS = ("JobIDRaw", "State", "ExitCode", "Start", "End", "Elapsed", "NodeList", "Reason", "DerivedExitCode")

_EMPTY = frozenset({"", "(null)", "N/A", "n/a", "NONE", "None", "Unknown", "NOT_SET", "INVALID"})
_UNLIMITED = frozenset({"UNLIMITED", "INFINITE", "infinite", "Partition_Limit"})
_FREE_TEXT = frozenset({"Reason", "Comment", "AdminComment", "SystemComment", "Extra", "Command", "WorkDir", "StdErr", "StdIn",
                        "StdOut", "OS"})  # fmt: skip
MAX_NODES = 100_000  # names in one node list; the largest clusters have a tenth
MAX_DIGITS = 18  # of a whole number: what the database holds
_NODE_LIST = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"([^\[]*)(\[[^\]]*\]|$)")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/\[\].-]*)=")


@dataclass(frozen=True)
class Job:
    """One job as squeue shows it. Times are seconds since the epoch on this host's clock zone; None: not known."""

    id: str
    state: str
    partition: str
    nodes: int | None
    node_list: str
    start: float | None
    end: float | None
    time_left: float | None
    elapsed: float | None
    submitted: float | None
    comment: str
    name: str
    reason: str


@dataclass(frozen=True)
class Partition:
    """One partition. `max_time` (seconds) and `max_nodes` are None when unlimited; `gpus` counts by type, "gpu" if untyped."""

    name: str
    default: bool
    up: bool
    state: str
    max_time: float | None
    default_time: float | None
    max_nodes: int | None
    min_nodes: int
    total_nodes: int
    total_cpus: int
    max_cpus_per_node: int | None
    allow_accounts: tuple[str, ...] | None
    deny_accounts: tuple[str, ...]
    allow_qos: tuple[str, ...] | None
    node_list: str
    gpus: dict[str, int]
    preempt_mode: str
    grace_seconds: float


@dataclass(frozen=True)
class Node:
    """One node. Memory in MB; `gpus` and `gpus_used` count by type."""

    name: str
    states: tuple[str, ...]
    cpus: int
    cpus_used: int
    memory: int
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gpus: dict[str, int]
    gpus_used: dict[str, int]
    reason: str
    version: str

    @property
    def usable(self) -> bool:
        """Whether a job may start here once it is free."""
        return not {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "INVAL", "FUTURE", "MAINT",
                    "UNKNOWN", "ERROR"} & set(self.states)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """The end of a job by accounting. `state` is the bare word; who cancelled is in `by`."""

    id: str
    state: str
    by: str
    code: int | None
    signal: int | None
    end: float | None
    nodes: str
    reason: str


@dataclass(frozen=True)
class Association:
    """One account of a user and what it allows one job. `partition` is empty for every partition; None: no limit."""

    account: str
    default: bool
    partition: str = ""
    max_time: float | None = None
    max_nodes: int | None = None


def parse_duration(text: str) -> float | None:
    """Seconds of Slurm's [days-]hours:minutes:seconds, minutes:seconds, or minutes; None for unlimited and unknown."""
    text = text.strip()
    if text in _UNLIMITED or text in _EMPTY:
        return None
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,12})(?::(\d{1,9}))?(?::(\d{1,9}))?(?:\.\d{1,9})?", text, re.ASCII)
    if match is None:
        return None
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def format_duration(seconds: float) -> str:
    """Slurm's days-hours:minutes:seconds, which every release takes as a time limit."""
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02d}:{minute:02d}:{second:02d}" if days else f"{hour:02d}:{minute:02d}:{second:02d}"


def parse_time(text: str) -> float | None:
    """Epoch seconds of an ISO time in local time; None for N/A, Unknown and what cannot be read."""
    if text.strip() in _EMPTY:
        return None
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def parse_squeue(text: str) -> list[Job]:
    """Jobs printed with SQUEUE_FORMAT and no header."""
    jobs = []
    for line in text.splitlines():
        # The comment and the name may hold the separator: the ten fields before and the reason after are fixed.
        parts = line.split("|")
        if len(parts) < 13 or _integer(parts[0]) is None:
            continue
        head = [part.strip() for part in parts[:10]]
        comment, name, reason = "|".join(parts[10:-2]), parts[-2].strip(), parts[-1].strip()
        jobs.append(Job(
            id=head[0], state=head[1], partition=head[2], nodes=_integer(head[3]), node_list=_text(head[4]),
            start=parse_time(head[5]), end=parse_time(head[6]), time_left=parse_duration(head[7]),
            elapsed=parse_duration(head[8]), submitted=parse_time(head[9]), comment=_text(comment), name=name,
            reason=_text(reason),
        ))  # fmt: skip
    return jobs


def parse_records(text: str, first: str) -> list[dict[str, str]]:
    """Records of `scontrol show`, one-line or indented form; `first` is the key that begins one (JobId, NodeName, ...)."""
    starts = [match.start() for match in re.finditer(rf"(?m)^{re.escape(first)}=", text)]
    return [_fields(text[begin:end]) for begin, end in zip(starts, [*starts[1:], len(text)])]


def _fields(text: str) -> dict[str, str]:
    """key=value pairs; a value ends where the next ` Key=` begins, so that it may hold spaces."""
    found = list(_keys(text))
    fields: dict[str, str] = {}
    for (key, begin, _), following in zip(found, [*found[1:], ("", 0, len(text))]):
        fields.setdefault(key, " ".join(text[begin : following[2]].split()))
    return fields


def _keys(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, begin of its value, begin of the key). Free text that begins a line runs to its end, whatever it holds."""
    free_until = 0
    for match in _FIELD.finditer(text):
        begin = match.start(1)
        if begin < free_until:
            continue
        yield match.group(1), match.end(), begin
        if match.group(1) in _FREE_TEXT and not text[text.rfind("\n", 0, begin) + 1 : begin].strip():
            line_end = text.find("\n", match.end())
            free_until = line_end if line_end >= 0 else len(text)


def parse_partitions(text: str) -> list[Partition]:
    """Partitions of `scontrol show partition`."""
    return [_partition(record) for record in parse_records(text, "PartitionName")]


def _partition(record: dict[str, str]) -> Partition:
    state = record.get("State", "")
    return Partition(
        name=record["PartitionName"], default=record.get("Default") == "YES", up=state == "UP", state=state,
        max_time=parse_duration(record.get("MaxTime", "")), default_time=parse_duration(record.get("DefaultTime", "")),
        max_nodes=_integer(record.get("MaxNodes", "")), min_nodes=_integer(record.get("MinNodes", "")) or 0,
        total_nodes=_integer(record.get("TotalNodes", "")) or 0, total_cpus=_integer(record.get("TotalCPUs", "")) or 0,
        max_cpus_per_node=_integer(record.get("MaxCPUsPerNode", "")), allow_accounts=_allowed(record.get("AllowAccounts")),
        deny_accounts=_allowed(record.get("DenyAccounts")) or (), allow_qos=_allowed(record.get("AllowQos")),
        node_list=_text(record.get("Nodes", "")), gpus=gpus_of_tres(record.get("TRES", "")),
        preempt_mode=record.get("PreemptMode", ""), grace_seconds=float(_integer(record.get("GraceTime", "")) or 0),
    )  # fmt: skip


def parse_nodes(text: str) -> list[Node]:
    """Nodes of `scontrol show node`."""
    return [_node(record) for record in parse_records(text, "NodeName")]


def _node(record: dict[str, str]) -> Node:
    gpus = gpus_of_gres(record.get("Gres", "")) or gpus_of_tres(record.get("CfgTRES", ""))
    used = gpus_of_gres(record.get("GresUsed", "")) or gpus_of_tres(record.get("AllocTRES", ""))
    # The type is not always told for used GPUs; on a node with one type it can only be that one.
    if len(gpus) == 1 and used:
        used = {next(iter(gpus)): sum(used.values())}
    state = (record.get("State") or "UNKNOWN").split()[0].rstrip("*~#!%$@^+-") or "UNKNOWN"
    return Node(
        name=record["NodeName"], states=tuple(state.upper().split("+")), cpus=_integer(record.get("CPUTot", "")) or 0,
        cpus_used=_integer(record.get("CPUAlloc", "")) or 0, memory=_integer(record.get("RealMemory", "")) or 0,
        partitions=_list(record.get("Partitions", "")),
        features=_list(record.get("ActiveFeatures", "") or record.get("AvailableFeatures", "")),
        gpus=gpus, gpus_used=used, reason=_text(record.get("Reason", "")), version=record.get("Version", ""),
    )  # fmt: skip


def gpus_of_gres(text: str) -> dict[str, int]:
    """GPUs by type of a GRES string such as `gpu:a100:8(S:0-1),gpu:2,tmp:5`."""
    found: dict[str, int] = {}
    for part in re.sub(r"\([^()]*\)", "", text).split(","):
        words = part.strip().split(":")
        if words[0] != "gpu" or len(words) > 3:
            continue
        count = words[-1] if len(words) > 1 else "1"
        known = _integer(count)
        kind = words[1] if len(words) == 3 or (len(words) == 2 and known is None) else "gpu"
        number = 1 if known is None else known
        if number:
            found[kind] = found.get(kind, 0) + number
    return found


def gpus_of_tres(text: str) -> dict[str, int]:
    """GPUs by type of a TRES string; the untyped total counts only for what no type explains (MIG slices, say)."""
    typed: dict[str, int] = {}
    total = 0
    for part in text.split(","):
        name, _, word = part.strip().partition("=")
        count = _integer(word)
        if count is None:
            continue
        if name == "gres/gpu":
            total = count
        elif name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = count
    typed = {kind: number for kind, number in typed.items() if number}
    rest = total - sum(typed.values())
    return typed | ({"gpu": rest} if rest > 0 else {})


def parse_sacct(text: str) -> list[Ended]:
    """Jobs (no steps) of `sacct -X -n -P -o SACCT_FIELDS`; a requeued job appears once per start, the last is the newest."""
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < 8 or _integer(parts[0]) is None:
            continue
        word, _, by = parts[1].partition(" by ")
        code, _, signal = parts[2].partition(":")
        found.append(Ended(parts[0].strip(), word.strip().rstrip("+"), by.strip(), _integer(code), _integer(signal),
                           parse_time(parts[4]), _text(parts[6]), _text(parts[7])))  # fmt: skip
    return found


def parse_associations(text: str) -> list[Association]:
    """Accounts of `sacctmgr -n -P show user NAME withassoc format=ASSOCIATION_FIELDS`, those of the default account first."""
    found = []
    for line in text.splitlines():
        default, account, partition, time, nodes = (*line.split("|"), "", "", "", "", "")[:5]
        if account:
            found.append(Association(account, account == default, partition, parse_duration(time), _integer(nodes)))
    return sorted(found, key=lambda association: not association.default)


def parse_config(text: str) -> dict[str, str]:
    """Settings of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_test_only(text: str) -> tuple[float | None, str]:
    """(start in epoch seconds, nodes) that `sbatch --test-only` estimates on stderr."""
    match = re.search(r"to start at (\S+) using .*?(?:nodes|on nodes?) (\S+)", text)
    return (parse_time(match.group(1)), match.group(2)) if match else (None, "")


def expand_nodes(text: str) -> list[str]:
    """Host names of a node list such as `n[01-03,7],gpu5`; several brackets in one name are expanded as Slurm does.

    A part with more than MAX_NODES names is damage and stays as it is.
    """
    return [name for part in _NODE_LIST.findall(text.strip()) for name in _expand(part.strip())]


def _expand(pattern: str) -> list[str]:
    names = [""]
    for text, brackets in _BRACKETS.findall(pattern):
        middles = _numbers(brackets) if brackets else [""]
        if not middles or len(names) * len(middles) > MAX_NODES:
            return [pattern]
        names = [name + text + middle for name in names for middle in middles]
    return names if names != [""] else []


def _numbers(brackets: str) -> list[str]:
    """The numbers of `[01-03,7]` as they are written; empty when it is something else, or too many."""
    found: list[str] = []
    for item in brackets[1:-1].split(","):
        low, _, high = item.partition("-")
        first, last = _integer(low), _integer(high or low)
        if first is None or last is None or last - first >= MAX_NODES - len(found):
            return []
        found += [str(number).zfill(len(low)) for number in range(first, last + 1)]
    return found


def _text(value: str) -> str:
    value = value.strip()
    return "" if value in _EMPTY else value


def _list(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(value).split(",") if part.strip())


def _allowed(value: str | None) -> tuple[str, ...] | None:
    """Names of an Allow... field; None when everyone is allowed."""
    return None if value is None or value.strip() in ("ALL", *_EMPTY) else _list(value)


def _integer(value: str) -> int | None:
    value = value.strip().rstrip("*")
    return int(value) if len(value) <= MAX_DIGITS and value.isascii() and value.isdigit() else None
