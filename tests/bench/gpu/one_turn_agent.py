"""An episode of one turn; the reward is a coin, so that there is a gradient."""

from __future__ import annotations

import random
from typing import Any

from engine.agents import Env, Result, StepEnvRunner


class OneTurn(Env):
    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        return Result(reward=float(random.random() < 0.5))


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(OneTurn)
