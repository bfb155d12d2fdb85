"""Loading the one module that a run names as its agent."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from engine.agents.runner import Runner


class AgentError(ValueError):
    """The agent module cannot be used; the message says what to change."""


def load_agent(path: str | Path) -> Runner:
    """Import the module at `path` and make its AgentRunner. Its folder joins sys.path, so it can import its neighbours.

    Raises AgentError when the file is missing, fails on import, or does not export a usable AgentRunner.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise AgentError(f"train.agent_path: there is no file {path}")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = f"molt_agent_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise AgentError(f"train.agent_path: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise AgentError(f"train.agent_path: importing {file.name} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, "AgentRunner"):
        raise AgentError(f"train.agent_path: {file.name} must export a class AgentRunner(StepEnvRunner)")
    try:
        runner = module.AgentRunner()
    except (Exception, SystemExit) as error:
        raise AgentError(f"train.agent_path: AgentRunner() of {file.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(runner, Runner):
        raise AgentError(f"train.agent_path: AgentRunner of {file.name} must derive from engine.agents.Runner")
    return runner
