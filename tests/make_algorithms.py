"""Writes docs/algorithms.md from the code: `python -m tests.make_algorithms`. The measured table is tests/training/measured.md,
which `python -m tests.training.tiny_training` prints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.algo.advantage import ESTIMATORS
from engine.algo.correction import DIVERGENCES, finish_correction, importance_weights
from engine.algo.kl import adapted_coef, kl_estimate
from engine.algo.loss import AGGREGATIONS, POLICY_LOSSES, policy_objective, value_loss
from engine.algo.names import GROUP_ESTIMATORS, PRESETS, TOKEN_REWARD_ESTIMATORS
from engine.batch import shaped_reward
from engine.flags import flag_table
from engine.rollout.filtering import filtered

PAGE = Path(__file__).parents[1] / "docs/algorithms.md"
MEASURED = Path(__file__).parent / "training/measured.md"
SECTIONS = ("algo.", "reward.", "critic.", "ref.")
ACTOR = ("actor.loss_mode", "actor.loss_agg_mode", "actor.eps_clip_low_high", "actor.dual_clip", "actor.entropy_coef",
         "actor.freeze_moe_router", "train.routing_replay", "train.routing_replay_border")  # fmt: skip


def text_of(function: Callable) -> str:
    """The docstring as one Markdown paragraph per paragraph."""
    return inspect.cleandoc(function.__doc__ or "").replace("*", r"\*").replace("<", r"\<")


def entries(title: str, functions: Mapping[str, Callable]) -> list[str]:
    lines = [f"## {title}", ""]
    for name, function in functions.items():
        module = function.__module__.replace(".", "/")
        lines += [f"### {name}", "", text_of(function), "", f"`{function.__name__}` in `{module}.py`", ""]
    return lines


def page() -> str:
    """The whole page."""
    shaping = {"Length penalties": shaped_reward, "Dynamic filter": filtered}
    kl = {"Estimates": kl_estimate, "Adaptive coefficient": adapted_coef}
    correction = {"Weights": importance_weights, "Divergences: binary_kl": DIVERGENCES["binary_kl"],
                  "Divergences: tv": DIVERGENCES["tv"], "Metrics": finish_correction}  # fmt: skip
    lines = ["# Algorithms", "", "Generated from the code by `python -m tests.make_algorithms`.", ""]
    lines += ["## What was measured", "", MEASURED.read_text().strip(), ""]
    lines += entries("Advantage estimators (algo.advantage.estimator)", ESTIMATORS)
    lines += [f"With a group baseline, so several rollouts per prompt: {', '.join(GROUP_ESTIMATORS)}. "
              f"With rewards of single tokens, such as a KL: {', '.join(TOKEN_REWARD_ESTIMATORS)}.", ""]  # fmt: skip
    lines += entries("Rewards before that", shaping)
    lines += entries("The objective", {"Policy objective": policy_objective, "Critic": value_loss})
    lines += entries("Policy losses (actor.loss_mode)", POLICY_LOSSES)
    lines += entries("Aggregations (actor.loss_agg_mode)", AGGREGATIONS)
    lines += entries("Importance-sampling correction (algo.advantage.is_correction_*)", correction)
    lines += ["### Presets", "", *(f"- `{name}`: level `{level}`, mode `{mode}`" for name, (level, mode) in PRESETS.items()), ""]
    lines += entries("KL (algo.kl)", kl)
    lines += ["## Settings", "", "| Flag | Value | Default | Meaning |", "|---|---|---|---|"]
    for flag in flag_table().values():
        if flag.path.startswith(SECTIONS) or flag.path in ACTOR:
            lines.append(f"| `--{flag.path}` | {flag.type.replace('|', 'or')} | `{flag.default}` | {flag.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
