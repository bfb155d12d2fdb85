"""What an agent module imports: `from engine.agents import Env, Result, StepEnvRunner`."""

from engine.agents.env import Env, Result
from engine.agents.load import AgentError, load_agent
from engine.agents.runner import DropRollout, Episode, Runner, StepEnvRunner

__all__ = ["AgentError", "DropRollout", "Env", "Episode", "Result", "Runner", "StepEnvRunner", "load_agent"]
