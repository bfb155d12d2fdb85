"""One rank of a two-rank run, and the same work on any number of ranks in-process."""

from __future__ import annotations

from pathlib import Path

import torch
from helpers import config, order, rollouts
from model_ranks import CASES, PACKED, train_two

from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from engine.train.weights import gathered_weights, spelled

CONFIG = config(
    train={"routing_replay": True, "logprob_chunk_tokens": 7},
    actor={
        "adam": {"lr": 1e-3},
        "max_norm": 1e9,
        "gradient_checkpoint": "full",
        "entropy_coef": 0.01,
        "loss_agg_mode": "prompt-mean-token-mean",
    },
    algo={"advantage": {"is_correction_level": "token", "is_correction_threshold": (0.1, 10.0)}},
)


def orders(ranks: int, budget: int, layers: int | None):
    """Uneven lengths with two optimizer steps; a single rollout, so that other ranks have nothing; everything over age."""
    several = rollouts(13, version=1, layers=layers)
    for rollout in several[:4]:
        rollout.segments[0].versions[rollout.segments[0].loss_mask] = 0
    return [
        order(several, ranks=ranks, budget=budget, per_step=8, version=2, max_staleness=1, trace=True),
        order(rollouts(1, seed=5, layers=layers), ranks=ranks, budget=budget),
        order(rollouts(3, seed=6, layers=layers), ranks=ranks, budget=budget, version=4, max_staleness=1),
    ]


def train_all(trainer: Trainer, ranks: int, budget: int, layers: int | None = 2) -> dict:
    """Train on every order; gradients of each optimizer step, reports, final weights and scores."""
    gradients: list[dict[str, torch.Tensor]] = []

    def capture(*_):
        lm = trainer.policy.lm
        whole = ((n.replace("_checkpoint_wrapped_module.", ""), p.grad.full_tensor()) for n, p in lm.named_parameters())
        gradients.append({n: t.clone() for name, tensor in whole for n, t in spelled(lm, name, tensor)})

    trainer.optimizer.register_step_pre_hook(capture)
    reports = [trainer.train(o) for o in orders(ranks, budget, layers)]
    return {
        "gradients": gradients,
        "metrics": [r.metrics for r in reports],
        "stepped": [r.stepped for r in reports],
        "traced": [[t.sample for t in r.traces] for r in reports],
        "traces": [t for r in reports for t in r.traces],
        "weights": dict(gathered_weights(trainer.policy.lm, torch.float32)),
        "scores": trainer.score([[1, 2, 3, 4], [5, 6]]),
    }


def main(rank: int, paths: tuple[str, str, str], folder: str, port: int) -> None:
    """Train on two ranks: `paths` are those of the policy, a reference and a dense model."""
    from split_ranks import TWO_RANKS, run_case

    torch.set_num_threads(1)
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(CONFIG, paths[0], rank=rank, world=2, port=port))
    result = train_all(trainer, ranks=2, budget=30)
    trainer.save(f"{folder}/step-000003", b"controller")
    torch.save(result, Path(folder) / f"policy-{rank}.pt")
    results = {case: train_two(case, paths, rank=rank, ranks=2, budget=40) for case in CASES}
    torch.save(results, Path(folder) / f"models-{rank}.pt")
    results = {case: train_two(case, paths, rank=rank, ranks=2, budget=30, packed=True, cp=2) for case in PACKED}
    torch.save(results, Path(folder) / f"sequences-{rank}.pt")
    results = {name: run_case(case, paths, Path(folder) / name, rank, world=2) for name, case in TWO_RANKS.items()}
    torch.save(results, Path(folder) / f"splits-{rank}.pt")
    torch.distributed.destroy_process_group()
