"""Batches that need other models than the policy (critic, reference, teacher), trained on any number of ranks."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from helpers import config, rollouts, segment

from engine.batch import prepare, set_advantages
from engine.config import Config
from engine.rollout.pool import Batch
from engine.rollout.runner import summarize
from engine.rollout.transport import FinishedGroup, Prompt
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec

# With a large epsilon Adam's step is proportional to the gradient, so what differs by rounding stays so.
ADAM = {"lr": 0.1, "eps": 1.0}
PACKED = ("KL in the loss", "distillation")  # a critic reads padded rows
CASES = {
    "critic and KL in the reward": {"advantage": {"estimator": "gae", "lam": 0.9}, "kl": {"init_coef": 0.1, "estimator": "k1"}},
    "KL in the loss": {"advantage": {"estimator": "grpo"}, "kl": {"init_coef": 0.1, "use_loss": True}},
    "distillation": {"advantage": {"estimator": "on_policy_distill"}},
}


def config_of(case: str, ranks: int, budget: int, packed: bool, cp: int) -> Config:
    return config(
        algo=CASES[case],
        actor={"adam": ADAM, "max_norm": 1e9, "gradient_checkpoint": "full", "num_gpus_per_node": ranks},
        critic={"adam": ADAM},
        fsdp={"packing_samples": packed, "cp_size": cp},
        train={"routing_replay": True, "batch_size": 8, "max_tokens_per_gpu": budget},
    )


def groups(shuffled: bool) -> list[FinishedGroup]:
    """Four prompts of four rollouts, every fourth with a second segment; shuffled within what one optimizer step trains."""
    records = rollouts(16)
    rng = np.random.default_rng(7)
    for i, record in enumerate(records):
        record.reward = float(rng.integers(0, 3))
        if i % 4 == 0:
            record.segments.append(segment(rng, 6, 3))
    made = [FinishedGroup(f"g{g}", Prompt(f"g{g}", ""), [], records[4 * g : 4 * g + 4]) for g in range(4)]
    if shuffled:
        made = [made[1], made[0], made[3], made[2]]
        for group in made:
            group.payload.reverse()
    for group in made:
        group.rollouts = [summarize(r) for r in group.payload]
    return made


def train_two(
    case: str, paths: tuple[str, str], *, rank: int = 0, ranks: int = 1, budget: int, shuffled: bool = False,
    packed: bool = False, cp: int = 1,
) -> dict:  # fmt: skip
    """Train two batches: what was measured before the second, by rollout and segment, gradients, metrics."""
    made = config_of(case, ranks, budget, packed, cp)
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(made, paths[0], rank=rank, world=ranks, reference_path=paths[1]))
    gradients: list[torch.Tensor] = []

    def capture(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients.append(torch.cat([p.grad.full_tensor().flatten() for p in parameters]))

    for optimizer in [trainer.optimizer, *([trainer.critic.optimizer] if trainer.critic else [])]:
        optimizer.register_step_pre_hook(capture)
    metrics, found = [], {}
    for _ in range(2):
        batch = prepare(Batch(0, groups(shuffled), {}), 0, made)
        if made.measures_first:
            parts: list[dict] = [{}] * ranks
            dist.all_gather_object(parts, trainer.measure(batch.order))
            found = {sample: measured for part in parts for sample, measured in part.items()}
            set_advantages(batch, found, made)
        metrics.append(trainer.train(batch.order).metrics)
    names = [(row.group.rollouts[row.rollout].rollout_id, row.segment) for row in batch.rows]
    measured = {names[s]: (m.rewards, m.values) for s, m in found.items()}
    return {"measured": measured, "gradients": gradients, "metrics": metrics}
