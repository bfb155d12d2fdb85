"""Rules about parallel sizes, placement and the Slurm allocation. Pure; validate.py runs them with the others."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config import Config

# Options of sbatch that the batch template writes itself; a second one would break what relies on them.
RESERVED = ("job-name", "comment", "output", "error", "signal", "requeue", "no-requeue", "open-mode", "array", "wrap", "ntasks",
            "ntasks-per-node", "parsable", "test-only", "export")  # fmt: skip
SHORT_RESERVED = ("-J", "-o", "-e", "-a", "-n")
DURATION = re.compile(r"(\d+|\d+:\d{1,2}|\d+:\d{1,2}:\d{1,2}|\d+-\d{1,2}(:\d{1,2}){0,2})")
MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|\w*KEY)$", re.IGNORECASE)

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
Rules = Iterator[tuple[object, str, str]]  # (broken, flag, message)


def trainer_rules(c: Config) -> Rules:
    fsdp, ranks, cpu = c.fsdp, c.trainer_ranks, c.placement.device == "cpu"
    tp, cp, given = fsdp.tp_size, fsdp.cp_size, f"{c.actor.num_nodes} x {c.actor.num_gpus_per_node} trainer ranks"
    for name, harmless in (("ep_size", 1), ("offload", "none"), ("attn_implementation", "sdpa")):
        value = getattr(fsdp, name)
        yield cpu and value != harmless, f"fsdp.{name}", f"{value} needs CUDA; use {harmless} with --placement.device cpu"
    for flag, size, words in (("fsdp.ep_size", fsdp.ep_size, ""), ("fsdp.tp_size", tp * cp, " (tp_size x cp_size)")):
        yield ranks % size, flag, f"{size}{words} does not divide {given} (actor.num_nodes x num_gpus_per_node)"
    yield tp > 1 and fsdp.ep_size > 1, "fsdp.tp_size", "ranks that share experts split no matrix; use 1"
    packs, flag, gae = fsdp.packing_samples, "fsdp.packing_samples", c.algo.advantage.estimator == "gae"
    yield cp > 1 and gae, "fsdp.cp_size", "splits packed rows, and the critic of gae reads padded ones; use 1"
    yield cp > 1 and not packs and not gae, "fsdp.cp_size", "splits packed rows alone; add --fsdp.packing_samples"
    yield (packs and fsdp.attn_implementation != "sdpa", flag,
           "packed rows have an attention of their own; use --fsdp.attn_implementation sdpa")  # fmt: skip
    yield packs and gae, flag, "the critic of gae reads padded rows; leave it off"


def split_faults(model: Mapping[str, Any], tp: int, cp: int) -> Iterator[tuple[str, str]]:
    """(flag, reason) wherever a model with these settings (config.json) cannot be split; what they lack is not judged."""
    if tp > 1 and any(model.get(key) for key in EXPERT_KEYS):
        yield "fsdp.tp_size", "splits dense models alone; use 1, and --fsdp.ep_size for the experts of this one"
        return
    sizes = [(name, model.get(name)) for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size")]
    for name, size in sizes:
        if isinstance(size, int) and size % tp:
            yield "fsdp.tp_size", f"{tp} does not divide the model's {name} ({size}); use one that does"
    heads = sizes[0][1]
    if isinstance(heads, int) and not heads % tp and heads // tp % cp:
        yield "fsdp.cp_size", f"{cp} does not divide the {heads // tp} attention heads of a rank; use one that does"


def placement_rules(c: Config) -> Rules:
    cpu, flag, colocate, ranks = c.placement.device == "cpu", "placement.colocate", c.placement.colocate, c.trainer_ranks
    yield (c.placement.pin_cores and c.placement.device == "cuda", "placement.pin_cores",
           "splits CPU cores between sampler and trainer; leave it off with device cuda")  # fmt: skip
    yield (colocate and cpu, flag, "shares GPUs, and placement.device is cpu; leave it off, or use --placement.device cuda")
    yield (colocate and (c.vllm.num_engines != ranks or c.vllm.tensor_parallel_size != 1), flag,
           f"puts one engine of one GPU beside each of the {ranks} trainer ranks; use --vllm.num_engines {ranks}"
           " --vllm.tensor_parallel_size 1")  # fmt: skip
    per_node, size, on_node = c.slurm.gpus_per_node, c.vllm.tensor_parallel_size, c.actor.num_gpus_per_node
    if not per_node or cpu:
        return
    yield (size > per_node and size % per_node, "vllm.tensor_parallel_size",
           f"{size} fits neither a node of {per_node} GPUs (slurm.gpus_per_node) nor several whole ones")  # fmt: skip
    yield (on_node > per_node, "actor.num_gpus_per_node",
           f"{on_node} ranks do not fit a node of {per_node} GPUs (slurm.gpus_per_node)")  # fmt: skip
    needed, given = c.engine_gpus + ranks, c.slurm.nodes * per_node
    yield (needed > given, "slurm.nodes",
           f"{c.slurm.nodes} x {per_node} GPUs are {given}, but the engines need {c.engine_gpus} and the trainer {ranks}; "
           "raise it, or lower vllm.num_engines or actor.num_nodes")  # fmt: skip


def slurm_rules(c: Config) -> Rules:
    slurm = c.slurm
    yield (not DURATION.fullmatch(slurm.time), "slurm.time", f"expects minutes, HH:MM:SS or D-HH:MM:SS, got '{slurm.time}'")
    yield (slurm.mem is not None and not MEMORY.fullmatch(slurm.mem), "slurm.mem",
           f"expects a size such as 256G, or 0 for all memory, got '{slurm.mem}'")  # fmt: skip
    for entry in slurm.env:
        name, equals, _ = entry.partition("=")
        yield not VARIABLE.fullmatch(name), "slurm.env", f"expects NAME=value or NAME, got '{entry}'"
        yield (equals and SECRET.search(name), "slurm.env",
               f"the value of {name} would be kept in the run directory and the database; export it here and give the name "
               "alone, which passes it on")  # fmt: skip
    for name in ("partition", "account", "qos", "reservation", "constraint", "gpu_type", "comment", "container", "python"):
        yield not (getattr(slurm, name) or "").isprintable(), f"slurm.{name}", "must be one line of printable text"
    for name in ("extra", "modules", "env", "container_mounts"):
        printable = all(entry.isprintable() for entry in getattr(slurm, name))
        yield not printable, f"slurm.{name}", "every entry must be one line of printable text"
    for option in slurm.extra:
        name = option.split("=")[0].split()[0] if option.strip() else ""
        reserved = name.lstrip("-") in RESERVED or (name[:2] in SHORT_RESERVED and not name.startswith("--"))
        is_option = name.startswith("-")
        yield not is_option, "slurm.extra", f"expects an option of sbatch such as --mail-type=END, got '{option}'"
        yield is_option and reserved, "slurm.extra", f"{name} is set by the batch template; leave it out"


CLUSTER_RULES = (trainer_rules, placement_rules, slurm_rules)
