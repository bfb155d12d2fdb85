"""The tiny models learn through the whole engine: two settings, and the estimator of docs/your-own-estimator.md."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs/your-own-estimator.md"
STEPS = 60
NUMBERS = "reasoning-gym:number_sorting?min_numbers=3&max_numbers=3&max_decimals=0&min_value=0&max_value=9&size=2000&seed=1"
FLAGS = ("--data.prompt_dataset", NUMBERS, "--train.max_steps", str(STEPS), "--eval.steps", "-1", "--eval.eval_at_start", "false",
         "--eval.eval_at_end", "false", "--ckpt.disable_final_save", "--train.probe_every", "1000")  # fmt: skip
# A MoE model whose bf16 sampler is replayed in fp32, one step behind; a dense one with two optimizer steps per batch.
SETTINGS = {
    "grpo, ppo, tis": ("--algo.advantage.is_correction_preset", "tis"),
    "rloo, cispo, icepop": (
        "--algo.advantage.estimator", "rloo", "--actor.loss_mode", "cispo", "--actor.eps_clip_low_high", "0.2", "5",
        "--train.batch_size", "128", "--actor.model_name_or_path", "tiny:qwen3", "--train.routing_replay", "false",
    ),
}  # fmt: skip


def rewards(live) -> list[float]:
    return [event["metrics"]["reward/mean"] for _, event in sorted(live.steps().items())]


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_the_reward_rises(start_run, name):
    live = start_run("demo", *FLAGS, *SETTINGS[name])
    assert live.end() == 0, live.log()
    found = rewards(live)
    first, last = np.mean(found[: STEPS // 5]), np.mean(found[-STEPS // 5 :])
    print(f"| {name} | {first:.3f} | {last:.3f} | {last - first:+.3f} |  |")
    assert len(found) == STEPS and last - first >= 0.15


@pytest.mark.long
def test_the_page_of_the_own_estimator_runs_to_its_end(start_run, tmp_path):
    text = PAGE.read_text()
    (tmp_path / "my_estimator.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    (command,) = re.findall(r"^python -m engine run (.*)$", text, re.MULTILINE)
    live = start_run(*command.replace("my_estimator.py", str(tmp_path / "my_estimator.py")).split())
    assert live.end() == 0, live.log()
    assert (live.run.agent / "estimator/my_estimator.py").is_file() and len(rewards(live)) == 40
