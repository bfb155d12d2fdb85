"""Loading the modules that a run names: its agent, and its own estimator if it has one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from engine.agents.runner import Runner


class AgentError(ValueError):
    """A module that the run names cannot be used; the message says what to change."""


def load_module(path: str | Path, flag: str) -> ModuleType:
    """Import the file at `path`, which `flag` names. Its folder joins sys.path, so it can import its neighbours.

    Raises AgentError when the file is missing or fails on import.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise AgentError(f"{flag}: there is no file {path}")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = f"molt_agent_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise AgentError(f"{flag}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise AgentError(f"{flag}: importing {file.name} failed: {type(error).__name__}: {error}") from error
    return module


def load_agent(path: str | Path) -> Runner:
    """Import the module at `path` and make its AgentRunner.

    Raises AgentError when the module cannot be imported or does not export a usable AgentRunner.
    """
    flag, name = "train.agent_path", Path(path).name
    module = load_module(path, flag)
    if not hasattr(module, "AgentRunner"):
        raise AgentError(f"{flag}: {name} must export a class AgentRunner(StepEnvRunner)")
    try:
        runner = module.AgentRunner()
    except (Exception, SystemExit) as error:
        raise AgentError(f"{flag}: AgentRunner() of {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(runner, Runner):
        raise AgentError(f"{flag}: AgentRunner of {name} must derive from engine.agents.Runner")
    return runner
