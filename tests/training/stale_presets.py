"""What the named corrections do to the same stale data: tokens of the untrained model, seen by one trained for 20 batches.
`python -m tests.training.stale_presets` prints the table of the docs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from engine.algo.correction import CorrectionRule, correction_metrics, finish_correction, importance_weights
from engine.algo.names import PRESETS
from engine.batch import prepare
from engine.train.collate import MicroBatch
from engine.train.passes import replayed_logprobs
from tests.training.tiny_training import Sampler, batches, build_start, config_of, join_alone, new_trainer

STALE_STEPS = 20
LOW, HIGH = 0.5, 2.0
COLUMNS = ("is/masked_low_frac", "is/masked_high_frac", "is/masked_frac", "is/masked_seq_frac", "is/truncated_frac",
           "is/kept_grad_frac", "is/ess_frac")  # fmt: skip


def stale_batch(start: Path) -> tuple[MicroBatch, torch.Tensor]:
    """Tokens of version 0 with the log-probs (B, T) of the trainer's policy STALE_STEPS batches later."""
    config = config_of({"advantage.estimator": "grpo"})
    trainer = new_trainer(config, start)
    stale = None
    for batch in batches(Sampler(start), trainer, STALE_STEPS):
        order = prepare(batch, config.train.max_staleness, config).order
        stale = stale or order
        trainer.train(order)
    (first,), _ = trainer._load(stale)
    return first, replayed_logprobs(trainer.policy, first, first.mask_BT)


def rates(batch: MicroBatch, old_BT: torch.Tensor, preset: str) -> dict[str, float]:
    level, mode = PRESETS[preset]
    rule = CorrectionRule(level, mode, "ratio", LOW, HIGH)
    result = importance_weights(old_BT, batch.rollout_logprobs_BT, batch.mask_BT, rule)
    return finish_correction(correction_metrics(result, batch.advantages_BT, batch.mask_BT))


def main() -> None:
    join_alone()
    with tempfile.TemporaryDirectory() as folder:
        batch, old_BT = stale_batch(build_start(Path(folder)))
    print("| Preset | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for preset in PRESETS:
        found = rates(batch, old_BT, preset)
        print(f"| {preset} | " + " | ".join(f"{found[c]:.3f}" if c in found else "" for c in COLUMNS) + " |")


if __name__ == "__main__":
    main()
