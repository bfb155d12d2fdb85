"""Trains the tiny model with one setting after another, in this process: the real batch code and trainer, and a sampler of
plain transformers that lags one version behind. `python -m tests.training.tiny_training` prints the table of the docs."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.batch import prepare, set_advantages
from engine.config import Config
from engine.records import Rollout, Segment
from engine.rollout.pool import Batch
from engine.rollout.runner import summarize
from engine.rollout.transport import FinishedGroup, Prompt
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from engine.train.tiny import build_tiny, warm_up
from engine.train.weights import gathered_weights
from recipes.sort_digits.agent import question, score_answer, warmup_examples

STEPS, PROMPTS, SAMPLES, DIGITS, ANSWER = 60, 16, 8, 3, 5
SEED = 7
START = "start"  # stands for the directory of the untrained model, TEACHER for that of a trained one
TEACHER = "teacher"

SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": {"advantage.estimator": "reinforce"},
    "reinforce_baseline": {"advantage.estimator": "reinforce_baseline"},
    "rloo": {"advantage.estimator": "rloo"},
    "grpo": {"advantage.estimator": "grpo"},
    "dr_grpo": {"advantage.estimator": "dr_grpo"},
    "gae": {"advantage.estimator": "gae"},
    "KL in the loss": {"advantage.estimator": "grpo", "kl.init_coef": 0.01, "kl.use_loss": True, "reference": START},
    "KL in the reward": {"advantage.estimator": "reinforce", "kl.init_coef": 0.01, "kl.estimator": "k1", "reference": START},
    "preset tis": {"advantage.estimator": "grpo", "advantage.is_correction_preset": "tis"},
    "preset icepop": {"advantage.estimator": "grpo", "advantage.is_correction_preset": "icepop"},
    "preset mis": {"advantage.estimator": "grpo", "advantage.is_correction_preset": "mis"},
    "cispo": {"advantage.estimator": "grpo", "loss_mode": "cispo", "eps_clip_low_high": (0.2, 5.0)},
    "gspo": {"advantage.estimator": "grpo", "loss_mode": "gspo"},
    "seq-mean-token-mean": {"advantage.estimator": "grpo", "loss_agg_mode": "seq-mean-token-mean"},
    "prompt-mean-token-mean": {"advantage.estimator": "grpo", "loss_agg_mode": "prompt-mean-token-mean"},
    "on_policy_distill": {"advantage.estimator": "on_policy_distill", "reference": TEACHER},
}


@dataclass
class Outcome:
    """Per step: mean reward of the batch, and the mean KL estimate where one was measured."""

    rewards: list[float]
    kl: list[float]

    def fifths(self, values: list[float]) -> tuple[float, float]:
        """Means of the first and the last fifth."""
        count = len(values) // 5
        return float(np.mean(values[:count])), float(np.mean(values[-count:]))


def config_of(changes: dict[str, Any]) -> Config:
    """The configuration of one setting: two optimizer steps per batch, tokens one version old, corrected per token."""
    advantage = {"is_correction_level": "token"}
    if "advantage.is_correction_preset" in changes:
        advantage = {}
    algo: dict[str, dict[str, Any]] = {"advantage": advantage, "kl": {}}
    actor: dict[str, Any] = {"adam": {"lr": 5e-4}}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        if section:
            algo[section][name] = value
        elif key != "reference":
            actor[key] = value
    return Config.model_validate(
        {"algo": algo, "actor": actor, "fsdp": {"param_dtype": "fp32"}, "critic": {"adam": {"lr": 3e-3}, "value_clip": 0.5},
         "vllm": {"dtype": "float32"}, "data": {"max_len": 16}, "trace": {"rollouts_per_step": 0},
         "rollout": {"batch_size": PROMPTS, "n_samples_per_prompt": SAMPLES},
         "train": {"batch_size": PROMPTS * SAMPLES // 2, "max_staleness": 1}}
    )  # fmt: skip


def build_start(folder: Path) -> Path:
    """A dense tiny model that answers with digits, in any order."""
    path = build_tiny(folder / START, "qwen3", seed=SEED)
    warm_up(path, warmup_examples(SEED, 20_000), steps=250, lr=3e-3, seed=SEED)
    return path


class Sampler:
    """Answers in batches with the log-probs of what it sampled."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.random = torch.Generator().manual_seed(SEED)

    @torch.no_grad()
    def rollouts(self, digits: str, count: int, version: int) -> list[Rollout]:
        prompt = self.tokenizer.encode(question(digits))
        ids_BT = torch.tensor([prompt] * count)
        logprobs_BT = torch.zeros(count, 0)
        for _ in range(ANSWER):
            logp_BV = self.model(input_ids=ids_BT).logits[:, -1].log_softmax(-1)
            chosen_B1 = torch.multinomial(logp_BV.exp(), 1, generator=self.random)
            ids_BT = torch.cat([ids_BT, chosen_B1], 1)
            logprobs_BT = torch.cat([logprobs_BT, logp_BV.gather(1, chosen_B1)], 1)
        rows = zip(ids_BT[:, len(prompt) :].tolist(), logprobs_BT.numpy(), strict=True)
        return [self._rollout(digits, i, prompt, *row, version) for i, row in enumerate(rows)]

    def _rollout(self, digits: str, index: int, prompt: list[int], answer: list[int], logprobs: Any, version: int) -> Rollout:
        end = self.tokenizer.eos_token_id
        length = answer.index(end) + 1 if end in answer else len(answer)
        text = self.tokenizer.decode([t for t in answer[:length] if t != end])
        before = len(prompt)
        segment = Segment(
            token_ids=np.array(prompt + answer[:length], np.int32),
            loss_mask=np.arange(before + length) >= before,
            logprobs=np.concatenate([np.zeros(before), logprobs[:length]]).astype(np.float32),
            versions=np.array([-1] * before + [version] * length, np.int32),
        )
        reward = score_answer(text, "".join(sorted(digits)))
        return Rollout(f"{digits}/{index}", digits, [segment], reward, reward, 1, end in answer, end not in answer)


def batches(sampler: Sampler, trainer: Trainer, steps: int = STEPS) -> Iterator[Batch]:
    """Batches for versions 0, 1, ...; each was sampled with the weights of the version before."""
    numbers = random.Random(SEED)
    weights: deque[dict[str, torch.Tensor]] = deque(maxlen=2)
    for version in range(steps):
        weights.append({n: w.clone() for n, w in gathered_weights(trainer.policy.lm, torch.float32)})
        sampler.model.load_state_dict(weights[0])
        groups = []
        for _ in range(PROMPTS):
            digits = "".join(numbers.choices("0123456789", k=DIGITS))
            records = sampler.rollouts(digits, SAMPLES, max(version - 1, 0))
            groups.append(FinishedGroup(digits, Prompt(digits, digits), [summarize(r) for r in records], records))
        yield Batch(version, groups, {})


def new_trainer(config: Config, start: Path, reference: Path | None = None) -> Trainer:
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(config, str(start), reference_path=str(reference) if reference else None))
    return trainer


def train(name: str, start: Path, teacher: Path | None, save_to: Path | None = None) -> Outcome:
    """One training run from the untrained model; the trained weights go to `save_to` if it is given."""
    changes = SETTINGS[name]
    config, reference = config_of(changes), {START: start, TEACHER: teacher, None: None}[changes.get("reference")]
    trainer = new_trainer(config, start, reference)
    outcome = Outcome([], [])
    for batch in batches(Sampler(start), trainer):
        prepared = prepare(batch, config.train.max_staleness, config)
        if config.measures_first:
            set_advantages(prepared, trainer.measure(prepared.order), config)
        metrics = prepared.metrics | trainer.train(prepared.order).metrics
        outcome.rewards.append(metrics["reward/mean"])
        if "loss/kl" in metrics:
            outcome.kl.append(metrics["loss/kl"])
    if save_to is not None:
        trainer.save_hf(str(save_to))
    return outcome


def join_alone() -> None:
    """A process group of this process alone."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def main(names: list[str]) -> None:
    join_alone()
    with tempfile.TemporaryDirectory() as folder:
        start, teacher = build_start(Path(folder)), Path(folder) / TEACHER
        for name in names or SETTINGS:
            if name == "on_policy_distill" and not teacher.exists():
                train("grpo", start, None, save_to=teacher)
            outcome = train(name, start, teacher, save_to=teacher if name == "grpo" else None)
            first, last = outcome.fifths(outcome.rewards)
            kl = " -> ".join(f"{v:.4f}" for v in outcome.fifths(outcome.kl)) if outcome.kl else ""
            print(f"| {name} | {first:.3f} | {last:.3f} | {last - first:+.3f} | {kl} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
