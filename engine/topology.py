"""Which node every actor goes to. Pure: an engine stays inside a node where it fits, else it takes whole nodes; the ranks of
one trainer node never span two."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import Config

# Custom Ray resource of a node of the allocation, by its index; slurm/node.py offers it.
NODE_PREFIX = "molt_node_"


class DoesNotFit(ValueError):
    """The allocation is too small; the message says what to change."""


@dataclass(frozen=True)
class Layout:
    """Labels of the nodes of every actor, in the order of the actors; rank r of the trainer is trainers[r]. An engine of several
    nodes is named by its first. None: any node."""

    engines: tuple[str | None, ...]
    trainers: tuple[str | None, ...]
    runners: tuple[str | None, ...]
    router: str | None


def nodes_of(resources: Sequence[dict[str, float]]) -> dict[str, int]:
    """GPUs by label of the labelled nodes among Ray's nodes, in the order of their indices; unlabelled ones are left out."""
    gpus = {name: int(offered.get("GPU", 0)) for offered in resources for name in offered if name.startswith(NODE_PREFIX)}
    return {label: gpus[label] for label in sorted(gpus, key=lambda name: int(name.removeprefix(NODE_PREFIX)))}


def arrange(nodes: dict[str, int], config: Config) -> Layout:
    """Trainer nodes from the end, so that engines and router share the head's node; engines fill what is left.

    Raises DoesNotFit. Without GPUs on any node only the nodes are told apart, not their sizes; without labelled nodes, as on
    one machine, every actor may go anywhere.
    """
    if not nodes:
        return Layout(
            (None,) * config.vllm.num_engines, (None,) * config.trainer_ranks, (None,) * config.rollout.num_runners, None
        )
    use_gpus = config.placement.device != "cpu" and any(nodes.values())
    free = dict(nodes) if use_gpus else dict.fromkeys(nodes, 1_000_000)
    whole, labels = dict(free), list(nodes)
    trainer_nodes = _trainer_nodes(labels, free, config)
    trainers = tuple(label for label in trainer_nodes for _ in range(config.actor.num_gpus_per_node))
    for label in trainers:
        free[label] -= 1
    others = [label for label in labels if label not in trainer_nodes]
    colocated = config.placement.colocate
    engines = trainers if colocated else _engine_nodes(others, trainer_nodes, free, whole, config)
    runner_nodes = others or labels
    runners = tuple(runner_nodes[i % len(runner_nodes)] for i in range(config.rollout.num_runners))
    return Layout(tuple(engines), trainers, runners, labels[0])


def check_gpus(available: int, config: Config) -> None:
    """Raises DoesNotFit when one machine has fewer GPUs than the actors hold: Ray would wait for them without an end."""
    engines = config.engine_gpus
    needed = engines + config.trainer_ranks
    if config.placement.device == "cuda" and available < needed:
        raise DoesNotFit(
            f"this machine has {available} GPUs, but the engines need {engines} (vllm.num_engines x tensor_parallel_size) and the"
            f" trainer {config.trainer_ranks} (actor.num_nodes x num_gpus_per_node); lower them, or launch it with --on slurm"
        )


def _trainer_nodes(labels: Sequence[str], free: dict[str, int], config: Config) -> list[str]:
    wanted, each = config.actor.num_nodes, config.actor.num_gpus_per_node
    fitting = [label for label in reversed(labels) if free[label] >= each]
    if len(fitting) < wanted:
        raise DoesNotFit(f"{len(fitting)} nodes have {each} GPUs for the trainer, actor.num_nodes wants {wanted}")
    return sorted(fitting[:wanted], key=labels.index)


def _engine_nodes(
    others: Sequence[str], trainer_nodes: Sequence[str], free: dict[str, int], whole: dict[str, int], config: Config
) -> list[str]:
    """The first node of every engine: nodes without trainer ranks before what the trainer leaves."""
    chosen: list[str] = []
    for _ in range(config.vllm.num_engines):
        nodes = _one_engine((others, trainer_nodes), free, whole, config.vllm.tensor_parallel_size)
        if not nodes:
            raise DoesNotFit(
                f"engine {len(chosen)} of {config.vllm.tensor_parallel_size} GPUs fits no node (vllm.num_engines"
                f" {config.vllm.num_engines}); raise slurm.nodes or lower vllm.num_engines"
            )
        chosen.append(nodes[0])
    return chosen


def _one_engine(groups: Sequence[Sequence[str]], free: dict[str, int], whole: dict[str, int], size: int) -> list[str]:
    """Take the GPUs of one engine: on the emptiest node that has them, else on whole equal nodes; empty when there are none."""
    for group in groups:
        fitting = [label for label in group if free[label] >= size]
        if fitting:
            label = max(fitting, key=lambda name: (free[name], -group.index(name)))
            free[label] -= size
            return [label]
    for group in groups:
        untouched = [label for label in group if free[label] and free[label] == whole[label]]
        for each in sorted({free[label] for label in untouched}, reverse=True):
            same = [label for label in untouched if free[label] == each]
            if size % each == 0 and len(same) >= size // each:
                nodes = same[: size // each]
                free.update(dict.fromkeys(nodes, 0))
                return nodes
    return []
