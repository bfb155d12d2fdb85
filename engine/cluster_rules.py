"""Rules about parallel sizes, placement and the Slurm allocation. Pure; validate.py runs them with the others."""

import re
from collections.abc import Iterator

from engine.config import Config

# Options of sbatch that the batch template writes itself; a second one would break what relies on them.
RESERVED = ("job-name", "comment", "output", "error", "signal", "requeue", "no-requeue", "open-mode", "array", "wrap", "ntasks",
            "ntasks-per-node", "parsable", "test-only", "export")  # fmt: skip
SHORT_RESERVED = ("-J", "-o", "-e", "-a", "-n")
DURATION = re.compile(r"(\d+|\d+:\d{1,2}|\d+:\d{1,2}:\d{1,2}|\d+-\d{1,2}(:\d{1,2}){0,2})")
MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|\w*KEY)$", re.IGNORECASE)

NOT_BUILT = {
    "tp_size": "no matrix is split inside the trainer: FSDP2 splits the weights over all ranks, ep_size the experts; use 1",
    "cp_size": "no sequence is split inside the trainer; use 1, with actor.gradient_checkpoint full for long ones",
}
Rules = Iterator[tuple[object, str, str]]  # (broken, flag, message)


def trainer_rules(c: Config) -> Rules:
    fsdp, ranks, cpu = c.fsdp, c.trainer_ranks, c.placement.device == "cpu"
    for name, reason in NOT_BUILT.items():
        yield getattr(fsdp, name) > 1, f"fsdp.{name}", reason
    for name, harmless in (("ep_size", 1), ("offload", "none"), ("attn_implementation", "sdpa")):
        value = getattr(fsdp, name)
        yield cpu and value != harmless, f"fsdp.{name}", f"{value} needs CUDA; use {harmless} with --placement.device cpu"
    yield (ranks % fsdp.ep_size, "fsdp.ep_size",
           f"{fsdp.ep_size} does not divide {c.actor.num_nodes} x {c.actor.num_gpus_per_node} trainer ranks "
           "(actor.num_nodes x num_gpus_per_node)")  # fmt: skip
    packs, flag = fsdp.packing_samples, "fsdp.packing_samples"
    yield (packs and fsdp.attn_implementation != "sdpa", flag,
           "packed rows have an attention of their own; use --fsdp.attn_implementation sdpa")  # fmt: skip
    yield packs and c.algo.advantage.estimator == "gae", flag, "the critic of gae reads padded rows; leave it off"


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
