"""One turn; of prompts with `tail`, a second turn whose length is drawn from a lognormal. The reward is a coin, so that there
is a gradient."""

from __future__ import annotations

import random
from typing import Any

from engine.agents import Env, Result, StepEnvRunner

MEDIAN, SIGMA, LONGEST = 64, 1.0, 640


class Coin(Env):
    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        if state["metadata"].pop("tail", False):
            length = min(LONGEST, max(1, round(MEDIAN * random.lognormvariate(0.0, SIGMA))))
            return Result(reward=0.0, terminated=False, sampling_params={"max_tokens": length})
        return Result(reward=float(random.random() < 0.5))

    async def reset(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return state | {"metadata": dict(state["metadata"])}


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(Coin)
