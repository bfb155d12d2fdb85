"""Rules about parallel sizes and the Slurm allocation. Pure; validate.py runs them with the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.config import Config
from engine.flags import Problem

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


def trainer_parallelism_is_possible(config: Config) -> Iterator[Problem]:
    fsdp, ranks = config.fsdp, config.trainer_ranks
    yield from (Problem(f"fsdp.{name}", reason) for name, reason in NOT_BUILT.items() if getattr(fsdp, name) > 1)
    if config.placement.device == "cpu":
        for name, harmless in (("ep_size", 1), ("offload", "none"), ("attn_implementation", "sdpa")):
            if (value := getattr(fsdp, name)) != harmless:
                yield Problem(f"fsdp.{name}", f"{value} needs CUDA; use {harmless} with --placement.device cpu")
    if ranks % fsdp.ep_size:
        yield Problem("fsdp.ep_size", f"{fsdp.ep_size} does not divide {config.actor.num_nodes} x "
                      f"{config.actor.num_gpus_per_node} trainer ranks (actor.num_nodes x num_gpus_per_node)")  # fmt: skip
    if fsdp.offload == "full" and ranks == 1:
        yield Problem("fsdp.offload", "full offload needs more than one trainer rank; use optimizer")
    if fsdp.packing_samples and fsdp.attn_implementation != "sdpa":
        yield Problem("fsdp.packing_samples", "packed rows have an attention of their own; use --fsdp.attn_implementation sdpa")
    if fsdp.packing_samples and config.algo.advantage.estimator == "gae":
        yield Problem("fsdp.packing_samples", "the critic of gae reads padded rows; leave it off")


def allocation_is_large_enough(config: Config) -> Iterator[Problem]:
    slurm, per_node = config.slurm, config.slurm.gpus_per_node
    if not per_node or config.placement.device == "cpu":
        return
    size = config.vllm.tensor_parallel_size
    if size > per_node and size % per_node:
        yield Problem("vllm.tensor_parallel_size", f"{size} fits neither a node of {per_node} GPUs (slurm.gpus_per_node) nor "
                      "several whole ones")  # fmt: skip
    if config.actor.num_gpus_per_node > per_node:
        yield Problem("actor.num_gpus_per_node", f"{config.actor.num_gpus_per_node} ranks do not fit a node of {per_node} GPUs "
                      "(slurm.gpus_per_node)")  # fmt: skip
    engines = config.engine_gpus
    needed, given = engines + config.trainer_ranks, slurm.nodes * per_node
    if needed > given:
        yield Problem("slurm.nodes", f"{slurm.nodes} x {per_node} GPUs are {given}, but the engines need {engines} and the "
                      f"trainer {config.trainer_ranks}; raise it, or lower vllm.num_engines or actor.num_nodes")  # fmt: skip


def slurm_text_is_sound(config: Config) -> Iterator[Problem]:
    slurm = config.slurm
    if not DURATION.fullmatch(slurm.time):
        yield Problem("slurm.time", f"expects minutes, HH:MM:SS or D-HH:MM:SS, got '{slurm.time}'")
    if slurm.mem is not None and not MEMORY.fullmatch(slurm.mem):
        yield Problem("slurm.mem", f"expects a size such as 256G, or 0 for all memory, got '{slurm.mem}'")
    for entry in slurm.env:
        name, equals, _ = entry.partition("=")
        if not VARIABLE.fullmatch(name):
            yield Problem("slurm.env", f"expects NAME=value or NAME, got '{entry}'")
        elif equals and SECRET.search(name):
            yield Problem("slurm.env", f"the value of {name} would be kept in the run directory and the database; export it "
                          "here and give the name alone, which passes it on")  # fmt: skip
    for name in ("partition", "account", "qos", "reservation", "constraint", "gpu_type", "comment", "container", "python"):
        if not _is_one_line(getattr(slurm, name) or ""):
            yield Problem(f"slurm.{name}", "must be one line of printable text")
    for name in ("extra", "modules", "env", "container_mounts"):
        if not all(_is_one_line(entry) for entry in getattr(slurm, name)):
            yield Problem(f"slurm.{name}", "every entry must be one line of printable text")


def _is_one_line(text: str) -> bool:
    return all(character.isprintable() for character in text)


def extra_options_are_free(config: Config) -> Iterator[Problem]:
    for option in config.slurm.extra:
        name = option.split("=")[0].split()[0] if option.strip() else ""
        if not name.startswith("-"):
            yield Problem("slurm.extra", f"expects an option of sbatch such as --mail-type=END, got '{option}'")
        elif name.lstrip("-") in RESERVED or (name[:2] in SHORT_RESERVED and not name.startswith("--")):
            yield Problem("slurm.extra", f"{name} is set by the batch template; leave it out")


CLUSTER_RULES = (trainer_parallelism_is_possible, allocation_is_large_enough, slurm_text_is_sound,
                 extra_options_are_free)  # fmt: skip
