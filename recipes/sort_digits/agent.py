"""Sort digits, smallest first: `7351=` is to be answered with `1357`.

The numbers come from reasoning-gym's number_sorting; its question is shortened for models that read single characters.
"""

from __future__ import annotations

import random
from typing import Any

from engine.agents import Env, Result, StepEnvRunner


class SortEnv(Env):
    async def reset(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        digits = "".join(str(int(float(n))) for n in state["metadata"]["entry"]["metadata"]["original_numbers"])
        return state | {"observation": question(digits), "label": "".join(sorted(digits))}

    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        score = score_answer(state["action_text"], state["label"])
        return Result(reward=score, score=score, info={"exact": score == 1.0})


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(SortEnv)


def question(digits: str) -> str:
    return f"{digits}="


def score_answer(answer: str, target: str) -> float:
    """1 for the target; else half the share of digits in their places, and half of that when the length is wrong."""
    if answer == target:
        return 1.0
    in_place = sum(a == t for a, t in zip(answer, target)) / len(target)
    return in_place * (0.5 if len(answer) == len(target) else 0.25)


def warmup_examples(seed: int, n: int) -> list[tuple[str, str]]:
    """Random digits to be answered with the same digits in any order: the form of an answer, not the order asked for."""
    chance = random.Random(seed)
    numbers = ["".join(chance.choices("0123456789", k=chance.choice((3, 4, 5)))) for _ in range(n)]
    return [(question(digits), "".join(chance.sample(digits, len(digits)))) for digits in numbers]
