"""One answer per prompt and no reward: the agent of distillation, where the teacher judges every token."""

from typing import Any

from engine.agents import Env, Result, StepEnvRunner


class AnswerOnly(Env):
    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        return Result(reward=None)


class AgentRunner(StepEnvRunner):
    def __init__(self) -> None:
        super().__init__(AnswerOnly)
