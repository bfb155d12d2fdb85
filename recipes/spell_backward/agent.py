"""Spell a word backward, letter by letter: `stop=` is to be answered with `pots`.

The words come from reasoning-gym's spell_backward; its question is shortened for models that read single characters.
"""

from __future__ import annotations

import random
from string import ascii_lowercase
from typing import Any

from engine.agents import Env, Result, StepEnvRunner


class SpellEnv(Env):
    async def reset(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        word = state["metadata"]["entry"]["metadata"]["word"]
        return state | {"observation": question(word), "label": word.lower()[::-1]}

    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        score = score_answer(state["action_text"], state["label"])
        return Result(reward=score, score=score, info={"exact": score == 1.0})


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(SpellEnv)


def question(word: str) -> str:
    return f"{word.lower()}="


def score_answer(answer: str, target: str) -> float:
    """1 for the target; else half the share of letters in their places, and half of that when the length is wrong."""
    if answer == target:
        return 1.0
    in_place = sum(a == t for a, t in zip(answer, target)) / len(target)
    return in_place * (0.5 if len(answer) == len(target) else 0.25)


def warmup_examples(seed: int, n: int) -> list[tuple[str, str]]:
    """Random letters to be answered with the same letters in any order: the form of an answer, not the order asked for."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(ascii_lowercase, k=chance.choice((3, 4)))) for _ in range(n)]
    return [(question(word), "".join(chance.sample(word, len(word)))) for word in words]
