"""Word problems with one number as the answer, given in \\boxed{}; one turn, reward 1 or 0."""

from __future__ import annotations

import re
from typing import Any

from engine.agents import Env, Result, StepEnvRunner

INSTRUCTION = "Think step by step, then give the final answer as a number in \\boxed{}."


class MathEnv(Env):
    async def reset(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        question = f"{state['observation']}\n\n{INSTRUCTION}"
        return state | {"observation": question}

    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        given = final_answer(state["action_text"])
        right = given is not None and same_number(given, str(state["label"]))
        return Result(reward=float(right), score=float(right), info={"answered": given is not None})


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(MathEnv)


def final_answer(text: str) -> str | None:
    """What the last \\boxed{} holds; None without one."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1].strip() if found else None


def same_number(given: str, wanted: str) -> bool:
    """Equality as numbers where both are numbers, else as text; signs of money and thousands do not matter."""
    first, second = (re.sub(r"[\s$,%]", "", text) for text in (given, wanted))
    try:
        return float(first) == float(second)
    except ValueError:
        return first == second
