"""Layouts that split matrices (tp) and rows (cp), each on the training of two_ranks.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from two_ranks import CONFIG, train_all

from engine.config import Config
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec


@dataclass(frozen=True)
class Case:
    """One layout; the ranks beyond tp x cp are spread over the samples. The model of `two_ranks`, or the dense one."""

    dense: bool
    tp: int = 1
    cp: int = 1
    offload: str = "none"

    def config(self) -> Config:
        fsdp = {"tp_size": self.tp, "cp_size": self.cp, "packing_samples": self.cp > 1, "offload": self.offload}
        train = {"routing_replay": not self.dense}
        changed = {"fsdp": CONFIG.fsdp.model_copy(update=fsdp), "train": CONFIG.train.model_copy(update=train)}
        return CONFIG.model_copy(update=changed)


TWO_RANKS = {"tp 2": Case(True, tp=2), "cp 2": Case(True, cp=2), "cp 2, experts": Case(False, cp=2)}
FOUR_RANKS = {
    "dp 2, tp 2, Adam on the host": Case(True, tp=2, offload="optimizer"),
    "dp 2, cp 2, experts": Case(False, cp=2),
    "tp 2, cp 2": Case(True, tp=2, cp=2),
    "cp 4: more ranks than heads of keys": Case(True, cp=4),
}


def run_case(case: Case, paths: tuple[str, str, str], folder: Path, rank: int = 0, world: int = 1, port: int = 0) -> dict:
    """Train, save and load again: the result of `train_all`, the traces' contents, and the scores after that."""
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(case.config(), paths[2] if case.dense else paths[0], rank=rank, world=world, port=port))
    ranks, layers = world // (case.tp * case.cp), None if case.dense else 2
    result = train_all(trainer, ranks=ranks, budget=1000 if world == 1 else 30, layers=layers)
    trainer.save(str(folder / "step-000003"), b"controller", hf=True)
    trainer.load(str(folder / "step-000003"))
    moments = (trainer.optimizer.state[p]["exp_avg"] for p in trainer.policy.parameters())
    return result | {
        "reloaded": trainer.score([[1, 2, 3, 4], [5, 6]]),
        "manifest": trainer.weight_manifest(),
        "moments": sum(float(m.full_tensor().double().abs().sum()) for m in moments),
    }


def four_ranks(rank: int, paths: tuple[str, str, str], folder: str, port: int) -> None:
    torch.set_num_threads(1)
    results = {n: run_case(c, paths, Path(folder) / n, rank, world=4, port=port) for n, c in FOUR_RANKS.items()}
    torch.save(results, Path(folder) / f"splits-{rank}.pt")
    dist.destroy_process_group()
