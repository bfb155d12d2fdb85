"""An episode of two turns: a first of 8 tokens, then one whose length is drawn from a lognormal; the reward is a coin."""

from __future__ import annotations

import random
from typing import Any

from engine.agents import Env, Result, StepEnvRunner

MEDIAN, SIGMA, LONGEST = 64, 1.0, 640


class LongTail(Env):
    turn = 0

    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        self.turn += 1
        if self.turn > 1:
            return Result(reward=float(random.random() < 0.5))
        length = min(LONGEST, max(1, round(MEDIAN * random.lognormvariate(0.0, SIGMA))))
        return Result(reward=0.0, terminated=False, sampling_params={"max_tokens": length})


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(LongTail)
