"""Runs on Slurm: plan, preflight, submit once, follow, submit again, stop."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.wire import RunDir
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.services import cluster as clusters
from molt_tui.services import launch as local
from molt_tui.services.runs import Run, get_run
from molt_tui.slurm import poll, submit
from molt_tui.slurm.architecture import Architecture, UnknownModel, find
from molt_tui.slurm.commands import NoAnswer, Slurm, SlurmError
from molt_tui.slurm.memory import Estimate, estimate, gpu_memory, remedies
from molt_tui.slurm.preflight import Finding, check, check_disk
from molt_tui.slurm.render import missing_variables, render
from molt_tui.slurm.site import Site, read_site
from molt_tui.slurm.state import view_of_job
from molt_tui.store.database import Store, open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest
from molt_tui.store.runs import forget_run

if TYPE_CHECKING:
    from engine.config import Config
    from engine.flags import Problem

Say = Callable[[str], None]
RUN_PLACEHOLDER = "RUN"
STAGE_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class MemoryTable:
    """The estimate for one configuration; `flags` would make it fit, each by itself. `unknown` says why there is none."""

    model: Architecture | None
    found: Estimate | None
    flags: tuple[str, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class Preflight:
    """What can be said before a submission."""

    findings: tuple[Finding, ...]
    memory: MemoryTable


@dataclass(frozen=True)
class Launched:
    """One run of a launch and what became of its submission."""

    run_id: str
    path: Path
    receipt: submit.Receipt


def make_plan(home: Home, recipe: str, flags: Sequence[str], **more: Any) -> tuple[local.Plan, Site]:
    """Plan a launch on Slurm; the site's defaults lie below the recipe. Raises Refused with every problem."""
    site = read_site(home.path)
    plan = local.make_plan(home, recipe, flags, base=site.base, **more)
    if site.runs_root is None and home.runs_root == home.path / "runs":
        raise Refused(f"no runs_root is set: put one on a file system that compute nodes share into {site.path}"
                      " (`molt-tui doctor --write-site` proposes it)")  # fmt: skip
    return plan, site


def memory_table(config: Config) -> MemoryTable | None:
    """The memory table of a configuration; None for a run without GPUs."""
    if not config.slurm.gpus_per_node or config.placement.device == "cpu":
        return None
    try:
        model = find(config.actor.model_name_or_path)
    except UnknownModel as unknown:
        return MemoryTable(None, None, (), str(unknown))
    gib = gpu_memory(config.slurm.gpu_type)
    return MemoryTable(model, estimate(model, config, gib), tuple(remedies(model, config, gib)))


def preflight(
    store: Store, slurm: Slurm, site: Site, config: Config, runs_root: Path, environment: Mapping[str, str]
) -> Preflight:
    """Everything that can be checked without submitting. Raises MoltError when Slurm does not answer."""
    cluster = clusters.cluster_name(store, slurm, site, older=False)
    partitions, nodes, _ = clusters.hardware(store, slurm, cluster, older=False)
    findings = check(config, partitions, nodes, clusters.associations(store, slurm, cluster))
    names = ", ".join(missing_variables(config.slurm, environment))
    if names:
        findings.append(Finding("slurm.env", f"{names} is not set here; set it, or give NAME=value"))
    memory = memory_table(config) or MemoryTable(None, None)
    findings += check_disk(config, runs_root, memory.model)
    if memory.found is not None and not memory.found.fits:
        words = f"by estimate it does not fit {memory.found.gpu_gib:.0f} GiB GPUs"
        hint = f"; enough would be {' or '.join(memory.flags)}" if memory.flags else ""
        findings.append(Finding("", words + hint, refuse=False))
    return Preflight(tuple(findings), memory)


def expected_start(slurm: Slurm, config: Config, folder: Path) -> str:
    """When and where Slurm expects the job to start, in words; nothing is submitted. Raises Refused with Slurm's words."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / f".batch-{os.getpid()}.sh"
    script.write_text(render(config, folder, RUN_PLACEHOLDER, 1))
    try:
        start, nodes = slurm.test_only(script)
    except SlurmError as error:
        raise Refused(f"Slurm refuses the job: {error}") from error
    except NoAnswer as error:
        raise MoltError(f"Slurm does not answer, nothing was submitted: {error}") from error
    finally:
        script.unlink(missing_ok=True)
    return f"Slurm expects a start at {time.strftime('%a %H:%M', time.localtime(start))} on {nodes}" if start is not None else ""


def preflight_all(store: Store, slurm: Slurm, site: Site, plan: local.Plan) -> Preflight:
    """The preflight of every run of a plan that asks for something else; each finding once, the memory of the first."""
    seen: dict[str, Config] = {}
    for run in plan.runs:
        config = with_interpreter(run.config)
        train = config.train.model_copy(update={"seed": 0})
        seen.setdefault(repr(config.model_copy(update={"train": train})), config)
    checked = [preflight(store, slurm, site, config, plan.runs_root, os.environ) for config in seen.values()]
    findings = dict.fromkeys(finding for one in checked for finding in one.findings)
    return Preflight(tuple(findings), checked[0].memory)


def launch(store: Store, slurm: Slurm, site: Site, plan: local.Plan, say: Say = lambda _: None) -> list[Launched]:
    """Make the run directories and submit each once. Raises Refused before anything is made, or with Slurm's own words.

    A refused run leaves nothing behind; when earlier runs of the plan were submitted, the error names them. One without an
    answer is kept: its receipt says `unknown`, and polling finds it.
    """
    cluster = clusters.cluster_name(store, slurm, site, older=False)
    checked = preflight_all(store, slurm, site, plan)
    clusters.refuse(checked.findings)
    for finding in checked.findings:
        say(f"warning: {finding}")
    if start := expected_start(slurm, with_interpreter(plan.runs[0].config), plan.runs_root):
        say(start)
    done: list[Launched] = []
    for planned in plan.runs:
        config = with_interpreter(planned.config)
        run = local.prepare(plan, planned, config, cluster)
        receipt = _submit(store, slurm, run, config, 1, cluster)
        if receipt.state == "refused":
            shutil.rmtree(run.path, ignore_errors=True)
            _drop(store, run)
            before = (
                f"{len(done)} of {len(plan.runs)} were submitted ({', '.join(d.run_id for d in done)}); then " if done else ""
            )
            raise Refused(f"{before}Slurm refuses the job: {receipt.message}")
        say(_words(run, receipt))
        done.append(Launched(run.path.name, run.path, receipt))
    return done


def with_interpreter(config: Config) -> Config:
    """The configuration with the interpreter that the job uses; this one or the engine's own, when none is set."""
    if config.slurm.python or config.slurm.container:
        return config
    return config.model_copy(update={"slurm": config.slurm.model_copy(update={"python": engine_of(config)})})


def engine_of(config: Config) -> str:
    """The interpreter of a job's engine outside a container. Raises Refused when none is named and this one has no engine."""
    if (missing := lacks_engine(config)) is not None:
        raise Refused(str(missing))
    return config.slurm.python or local.engine_python()


def lacks_engine(config: Config) -> Problem | None:
    """That a job would have no engine: none is named, and the environment it would be launched from has none."""
    from engine.flags import Problem

    if config.slurm.python or config.slurm.container or local.lacks_engine() is None:
        return None
    return Problem("slurm.python", "this environment has no engine: name an interpreter that the nodes see and that has it"
                                   " (`python = ...` under [slurm] of site.toml), or slurm.container")  # fmt: skip


def _submit(
    store: Store, slurm: Slurm, run: RunDir, config: Config, number: int, cluster: str, options: Sequence[str] = ()
) -> submit.Receipt:
    script = render(config, run.path, run.path.name, number)
    receipt = submit.submit(slurm, run, script, number, cluster, options)
    ingest(store, [run.path], rollouts=False)
    if receipt.state != "refused":
        poll.remember_submission(store, get_run(store, run.path.name).num, cluster, receipt, time.time())
        ingest(store, [run.path], rollouts=False)
    return receipt


def _drop(store: Store, run: RunDir) -> None:
    """Forget a run whose directory was removed again at its launch."""
    with store.write() as connection:
        forget_run(connection, run.path.name)


def _words(run: RunDir, receipt: submit.Receipt) -> str:
    if receipt.state == "submitted":
        return f"{run.path.name} is job {receipt.job_id}" + (f" ({receipt.message})" if receipt.message else "")
    return f"{run.path.name}: no answer from Slurm ({receipt.message}); its job is looked for and never submitted twice"


def requeue(store: Store, slurm: Slurm, site: Site, run: Run, say: Say = lambda _: None) -> submit.Receipt:
    """Submit a run again that has no live job: it goes on from its newest checkpoint. Raises Refused when it may be alive."""
    from engine.flags import load_run_toml

    if run.cluster == "local":
        raise Refused(f"{run.id} runs on this machine; `molt-tui resume {run.id}` starts it again")
    here = _require_here(store, slurm, run, site)
    if run.state == "completed":
        raise Refused(f"{run.id} is completed; launch its recipe again for more")
    before = submit.latest(run.directory)
    if before is not None and before.open:
        raise Refused(f"submission {before.number} of {run.id} got no answer yet: its job is looked for, not submitted again")
    after = _ending_job(slurm, run, before.job_id) if before is not None and before.job_id is not None else []
    config = load_run_toml(run.directory.run_toml)
    receipt = _submit(store, slurm, run.directory, config, (before.number if before else 0) + 1, here, after)
    if receipt.state == "refused":
        raise Refused(f"Slurm refuses the job: {receipt.message}")
    say(_words(run.directory, receipt))
    return receipt


def _require_here(store: Store, slurm: Slurm, run: Run, site: Site | None = None) -> str:
    """The cluster that Slurm's programs talk to here. Raises Refused when the run's job is on another: ids repeat there."""
    here = clusters.cluster_name(store, slurm, site or read_site(store.home.path))
    if run.cluster != here:
        raise Refused(f"{run.id} was launched on {run.cluster}; go to a login node of it, this one is {here}")
    return here


def _ending_job(slurm: Slurm, run: Run, job_id: str) -> list[str]:
    """Options that let a new job wait for one that is just ending. Raises Refused while that one is alive."""
    try:
        jobs = slurm.jobs([job_id])
    except NoAnswer as error:
        raise MoltError(f"Slurm does not answer, so nobody knows whether job {job_id} still lives: {error}") from error
    for job in jobs:
        if job.state == "COMPLETING":
            return [f"--dependency=afterany:{job.id}"]
        if view_of_job(job).state in ("queued", "active"):
            raise Refused(f"{run.id} has a live job {job.id} ({job.state.lower()}); stop it first")
    return []


def stop(store: Store, slurm: Slurm, run: Run, *, command_s: float = 60.0, kill: bool = False, say: Say = lambda _: None) -> bool:
    """Stop a run: by command, so that it saves; by scancel when it waits in the queue, does not obey, or with `kill`."""
    from molt_tui.services import control

    receipt = submit.latest(run.directory)
    if run.final:
        raise Refused(f"{run.id} is {run.state}; nothing is running that could stop")
    if receipt is None or receipt.open or receipt.job_id is None:
        raise Refused(f"{run.id} has no job that is known by its number yet; try again when Slurm answers")
    live = run.state not in ("queued", "starting") and not control.ended(run)
    if live and not kill:
        pending = control.send(run, "stop")
        say(f"asked {run.id} to stop; it saves a checkpoint first")
        answer = pending.wait(command_s, over=lambda: control.ended(run))
        if answer is not None:
            say(answer.message)
        deadline = time.monotonic() + command_s
        while not control.ended(run) and time.monotonic() < deadline:
            time.sleep(control.POLL_S)
        if control.ended(run):
            return True
    _require_here(store, slurm, run)
    say(f"scancel {receipt.job_id}")
    try:
        slurm.cancel(receipt.job_id)
    except (NoAnswer, SlurmError) as error:
        raise MoltError(f"job {receipt.job_id} could not be cancelled: {error}") from error
    waiting = run.state == "queued"
    row = {"run_num": run.num, "cluster": run.cluster, "job_id": receipt.job_id, "state": "cancelled" if waiting else "active",
           "words": "cancelled by you", "answered": time.time(), "ended": int(waiting)}  # fmt: skip
    poll.write_row(store, row)
    return True


def propose_site() -> tuple[Path, str]:
    """Write a site profile from what the cluster reports. Raises Refused when there is one, MoltError without an answer."""
    import getpass

    from molt_tui.slurm.site import propose, write_site
    from molt_tui.store.home import find_home

    slurm, home = Slurm(), find_home()
    user = getpass.getuser()
    try:
        name = slurm.config().get("ClusterName", "")
        partitions, nodes = slurm.partitions(), slurm.nodes()
        accounts = list(dict.fromkeys(association.account for association in slurm.associations(user)))
    except (NoAnswer, SlurmError) as error:
        raise MoltError(f"Slurm does not answer: {error}") from error
    text = propose(name, partitions, nodes, accounts, os.environ)
    return write_site(home.path, text), text


_polling = threading.Lock()


def refresh(store: Store, *, background: bool | None = None) -> list[Path]:
    """Ask Slurm about all live runs if it is time to; returns the run directories with a new answer.

    In the background (the default off the main thread) a slow controller never holds up the caller: the answer is then in
    the database at a later call.
    """
    if background is None:
        background = threading.current_thread() is not threading.main_thread()
    if not background:
        return _refresh(store)
    if _polling.acquire(blocking=False):
        threading.Thread(target=_refresh_in_background, args=(store.home,), name="slurm-poll", daemon=True).start()
    return []


def _refresh_in_background(home: Home) -> None:
    try:
        with open_store(home) as store:
            changed = _refresh(store)
            if changed:
                ingest(store, changed, rollouts=False)
    except MoltError:
        return  # the next call tries again; what is known keeps its time
    finally:
        _polling.release()


def _refresh(store: Store) -> list[Path]:
    slurm = Slurm()
    try:
        name = clusters.cluster_name(store, slurm, read_site(store.home.path))
    except MoltError:
        return []
    return poll.poll(store, slurm, name).changed


def stage(config: Config, target: Path) -> list[str]:
    """Copy the model and the data files of a configuration below `target`; returns the flags that use the copies."""
    from engine.datasets import GYM_PREFIX
    from molt_tui.slurm.render import library_root
    from molt_tui.spawn import run_program

    datasets = {"data.prompt_dataset": config.data.prompt_dataset, "eval.dataset": config.eval.dataset}
    files = list(dict.fromkeys(name for names in datasets.values() for name in names if not name.startswith(GYM_PREFIX)))
    python = engine_of(config)
    script = library_root() / "slurm" / "stage.py"
    done = run_program([python, str(script), str(target), config.actor.model_name_or_path, *files], timeout=STAGE_SECONDS)
    if done.code != 0:
        raise MoltError(f"staging failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    copies = dict(zip(files, (path for kind, _, path in lines if kind == "data")))
    flags = [f"--actor.model_name_or_path {path}" for kind, _, path in lines if kind == "model"]
    for flag, names in datasets.items():
        if any(name in copies for name in names):
            flags.append(f"--{flag} {' '.join(copies.get(name, name) for name in names)}")
    return flags


def dump_stacks(store: Store, slurm: Slurm, run: Run, seconds: float = 60.0) -> str:
    """What every process of a running attempt is doing, from every node. Raises Refused when it does not run here."""
    receipt = submit.latest(run.directory)
    if receipt is None or receipt.job_id is None or run.final or run.state == "queued":
        raise Refused(f"stacks needs a running Slurm job: {run.id} is {run.state} on {run.cluster}")
    _require_here(store, slurm, run)
    from engine.flags import load_run_toml
    from molt_tui.slurm.render import library_root

    config = load_run_toml(run.directory.run_toml)
    python = engine_of(config)
    try:
        return slurm.inside(receipt.job_id, [python, str(library_root() / "slurm" / "stacks.py"), str(run.path)], seconds)
    except (NoAnswer, SlurmError) as error:
        raise NotFound(f"the nodes of {run.id} did not answer: {error}") from error
