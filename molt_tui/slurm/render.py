"""The batch script of a run, from its configuration and the template that ships with the package. Pure but for reading it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.config import Config, SlurmConfig
from molt_tui.errors import Refused

MARK = "molt"


def library_root() -> Path:
    """The folder that holds the packages `engine` and `slurm`, which the job imports from there."""
    spec = importlib.util.find_spec("slurm.job")
    if spec is None or spec.origin is None:
        raise Refused("the package `slurm` of this installation is missing; install molt-tui again")
    return Path(spec.origin).resolve().parent.parent


def marker(run_id: str, number: int) -> str:
    """What a submission is recognised by in the queue."""
    return f"{MARK}:{run_id}.{number}"


def job_name(run_id: str) -> str:
    return f"{MARK}-{run_id}"


def comment(config: SlurmConfig, run_id: str, number: int) -> str:
    """The job comment: the marker, inside the user's own comment where there is one. A JSON comment stays JSON."""
    own = marker(run_id, number)
    if not config.comment:
        return own
    try:
        record = json.loads(config.comment)
    except ValueError:
        return f"{config.comment} {own}"
    if not isinstance(record, dict):
        return f"{config.comment} {own}"
    return json.dumps(record | {MARK: own}, separators=(",", ":"))


def directives(config: Config, run: Path, run_id: str, number: int) -> list[str]:
    """Options of sbatch, in the order in which the script shows them."""
    slurm = config.slurm
    plain = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos, "reservation": slurm.reservation,
             "constraint": slurm.constraint}  # fmt: skip
    gpu = f"gpu:{slurm.gpu_type}:{slurm.gpus_per_node}" if slurm.gpu_type else f"gpu:{slurm.gpus_per_node}"
    options = [f"--job-name={job_name(run_id)}", f"--comment={comment(slurm, run_id, number)}"]
    options += [f"--{name}={value}" for name, value in plain.items() if value]
    options += [f"--nodes={slurm.nodes}", "--ntasks-per-node=1"]
    options += [f"--gres={gpu}"] if slurm.gpus_per_node else []
    options += [f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []
    options += [f"--mem={slurm.mem}"] if slurm.mem else []
    options += ["--exclusive"] if slurm.exclusive else []
    options += [f"--time={slurm.time}", f"--signal=B:USR1@{slurm.signal_seconds}"]
    options += ["--requeue" if slurm.requeue else "--no-requeue", "--open-mode=append", f"--output={run}/slurm/job-%j.log"]
    return options + list(slurm.extra)


def _quote_directive(option: str) -> str:
    """One #SBATCH line: quoted when Slurm would split it; a double quote inside is not possible there otherwise."""
    if re.fullmatch(r"[^\s'\"\\#]+", option):
        return option
    name, equals, value = option.partition("=")
    return name + equals + "'" + value.replace("'", "") + "'" if "'" not in value else f'{name}{equals}"{value}"'


def variables(config: Config, run: Path) -> Iterator[str]:
    """export lines. The job's own interpreter runs outside a container, the engine's inside: the image's, if none is named."""
    slurm = config.slurm
    engine = slurm.python or ("python" if slurm.container else sys.executable)
    values = {"MOLT_RUN": str(run), "MOLT_LIBRARY": str(library_root()), "MOLT_PYTHON": engine,
              "MOLT_JOB_PYTHON": sys.executable if slurm.container else engine,
              "MOLT_SAVE_SECONDS": str(max(10, slurm.signal_seconds - 45))}  # fmt: skip
    for name, value in values.items():
        yield f"export {name}={shlex.quote(value)}"
    for entry in slurm.env:
        name, equals, value = entry.partition("=")
        if equals:
            yield f"export {name}={shlex.quote(value)}"


def setup(config: SlurmConfig) -> Iterator[str]:
    for module in config.modules:
        yield f"module load {shlex.quote(module)}"
    yield from config.setup


def missing_variables(config: SlurmConfig, environment: Mapping[str, str]) -> list[str]:
    """Names that are to be passed on but are not set here."""
    return [entry for entry in config.env if "=" not in entry and entry not in environment]


def template() -> str:
    return (library_root() / "slurm" / "batch.sh").read_text("utf-8")


def render(config: Config, run: Path, run_id: str, number: int) -> str:
    """The whole batch script of submission `number`."""
    blocks = {
        "directives": [f"#SBATCH {_quote_directive(o)}" for o in directives(config, run, run_id, number)],
        "variables": list(variables(config, run)),
        "setup": list(setup(config.slurm)),
    }
    lines: list[str] = []
    for line in template().splitlines():
        name = line.removeprefix("# molt:")
        lines += blocks[name] if name != line else [line]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
