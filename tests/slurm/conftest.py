"""A real Slurm cluster for the tests, two nodes on this machine, and runs on it. `make slurm` runs them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine import processes
from engine.wire import EventReader, RunDir
from molt_tui.services import runs as run_service
from molt_tui.services import slurm as service
from molt_tui.services.runs import Run
from molt_tui.slurm import poll, submit
from molt_tui.slurm.commands import Slurm
from molt_tui.store.database import Store, open_store
from molt_tui.store.home import Home, find_home

HERE = Path(__file__).parent
SCRIPT = HERE / "slurm-local.sh"
TOY_PYTHON = HERE / "toy_python.sh"
NODE_SIZE = ["--cpus", "8", "--mem", "16000", "--gpus", "2"]


@dataclass
class Cluster:
    """The daemons of one cluster; `signal` stops, continues or kills one, `mend` brings back what is down."""

    folder: Path
    options: list[str]
    extra: str = ""
    conf: str = ""

    def call(self, *arguments: str, check: bool = True) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        environment |= {"SLURM_LOCAL_DIR": str(self.folder), "SLURM_LOCAL_EXTRA": self.extra}
        done = subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=environment, timeout=300)
        if check and done.returncode != 0:
            raise RuntimeError(f"slurm-local.sh {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def start(self) -> None:
        self.conf = self.call("start", *self.options).strip().removeprefix("export SLURM_CONF=")

    def signal(self, name: str, number: str) -> None:
        self.call("signal", name, number)

    def mend(self) -> None:
        self.call("signal", "slurmctld", "CONT", check=False)
        self.start()


def _cluster(name: str, options: list[str], extra: str = "") -> Iterator[Cluster]:
    if os.geteuid() != 0 and shutil.which("slurmctld") is None:
        pytest.skip("Slurm is not installed and only root can install it")
    cluster = Cluster(Path(f"/tmp/molt-{name}-{os.getpid()}"), options, extra)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an end by time-out takes the daemons along
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.call("stop", check=False)
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plain_cluster() -> Iterator[Cluster]:
    """Two nodes; in network namespaces of their own where root may make them, so that each is a host for itself."""
    own_hosts = ["--netns"] if os.geteuid() == 0 else []
    yield from _cluster("slurm", [*NODE_SIZE, *own_hosts])


@pytest.fixture(scope="module")
def limited_cluster() -> Iterator[Cluster]:
    """Accounting with enforced associations: account lab, 30 minutes a job."""
    yield from _cluster("acct", [*NODE_SIZE, "--limits"], "EnforcePartLimits=ALL")


@pytest.fixture
def cluster(plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, whole again and empty after each test."""
    monkeypatch.setenv("SLURM_CONF", plain_cluster.conf)
    yield plain_cluster
    plain_cluster.mend()
    subprocess.run(["scancel", "-u", str(os.getuid())], env=os.environ | {"SLURM_CONF": plain_cluster.conf}, timeout=60)
    wait_for(lambda: not _live_jobs(plain_cluster), 60, "jobs to end")


def _live_jobs(cluster: Cluster) -> str:
    done = subprocess.run(["squeue", "-h", "-t", "PD,R,CG,S,CF", "-o", "%i %T"], capture_output=True, text=True, timeout=30,
                          env=os.environ | {"SLURM_CONF": cluster.conf})  # fmt: skip
    return done.stdout.strip() if done.returncode == 0 else "no answer"


def wait_for(condition: Callable[[], Any], seconds: float, what: str = "a condition", every: float = 0.1) -> Any:
    """The first true answer of `condition`, asked `every` so many seconds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {seconds:.0f} s")
        time.sleep(every)
    return answer


def molt(*arguments: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "molt_tui", *arguments]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, cwd=root)
    return done.returncode, done.stdout, done.stderr


@dataclass
class Desk:
    """A user at a login node: home, database, recipe, and shortcuts for what the tests do."""

    home: Home
    store: Store
    slurm: Slurm = field(default_factory=Slurm)
    said: list[str] = field(default_factory=list)

    def recipe(self, name: str = "toy", **toy: Any) -> Path:
        """A recipe whose engine is toy_engine.py: `steps` of `seconds`, saving every `save`, crashing as told."""
        folder = self.home.path / "recipes"
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text("class AgentRunner:\n    pass\n")
        path = folder / f"{name}.toml"
        path.write_text(
            '[actor]\nmodel_name_or_path = "tiny:qwen3"\n[data]\nprompt_dataset = ["reasoning-gym:chain_sum"]\n'
            f'[train]\nagent_path = "agent.py"\nmax_staleness = 0\nmax_steps = {toy.get("steps", 10)}\n'
            f'[slurm]\nnodes = 2\ntime = "00:10:00"\nsignal_seconds = 60\npython = "{TOY_PYTHON}"\n'
        )
        (folder / "toy.json").write_text(json.dumps({"steps": 10, "seconds": 0.1, "save": 5} | toy))
        return path

    def launch(self, *flags: str, **toy: Any) -> RunDir:
        """Launch a toy run; its plan is put beside run.toml before the job can start."""
        recipe = self.recipe(**toy)
        return self.submit(str(recipe), flags, {"toy.json": (recipe.parent / "toy.json").read_text()})

    def submit(self, recipe: str, flags: Sequence[str], files: Mapping[str, str] | None = None) -> RunDir:
        """Launch a recipe; `files` are in the run directory before sbatch is called."""
        plan, site = service.make_plan(self.home, recipe, flags)
        original = submit.submit

        def submit_with_files(slurm: Slurm, run: RunDir, *rest: Any, **more: Any) -> submit.Receipt:
            for name, text in (files or {}).items():
                (run.path / name).write_text(text)
            return original(slurm, run, *rest, **more)

        service.submit.submit = submit_with_files
        try:
            (done,) = service.launch(self.store, self.slurm, site, plan, say=self.said.append)
        finally:
            service.submit.submit = original
        return RunDir(done.path)

    def run(self, run: RunDir, *, ask: bool = True) -> Run:
        """The run as the database knows it, after asking Slurm now whatever the interval says."""
        if ask:
            self.ask_now()
        run_service.refresh(self.store)
        return run_service.get_run(self.store, run.path.name)

    def ask_now(self) -> poll.Report:
        with self.store.write() as connection:
            connection.execute("UPDATE slurm_calls SET asked = 0, failures = 0 WHERE kind = 'jobs'")
        return poll.poll(self.store, self.slurm, "testbed")

    def until(self, run: RunDir, *states: str, seconds: float = 60) -> Run:
        return wait_for(lambda: (r := self.run(run)).state in states and r, seconds, f"state {' or '.join(states)}", 0.3)

    def job_id(self, run: RunDir) -> str:
        receipt = submit.latest(run)
        assert receipt is not None and receipt.job_id is not None
        return receipt.job_id


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Iterator[Desk]:
    yield from make_desk(tmp_path, monkeypatch)


def make_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("MOLT_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MOLT_RESTART_SECONDS", "0.5")
    monkeypatch.delenv("MOLT_TUI_RUNS", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "site.toml").write_text(f'runs_root = "{tmp_path}/runs"\n')
    home = find_home().create()
    with open_store(home) as store:
        yield Desk(home, store)
    left = processes.marked(lambda value: value.startswith(str(tmp_path)))
    processes.send(left, 9)


def commands(run: RunDir) -> dict[int, str]:
    """The processes that have the run directory on their command line, with that line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run.path) in (line := path.read_bytes().replace(b"\0", b" ").decode(errors="replace")):
                found[int(path.parent.name)] = line
    return found


class Census:
    """The processes of a run, remembered, because some of them show another title later and lose the run's marker."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.seen = run, set[tuple[int, str]]()

    def take(self) -> set[int]:
        """The living processes of the run."""
        found = processes.family(lambda value: value.startswith(f"{self.run.path}:")) | commands(self.run).keys()
        self.seen |= {(pid, start) for pid in found if (start := _start_time(pid))}
        return found

    def assert_gone(self, seconds: float = 30, but: Callable[[str], bool] = lambda command: False) -> float:
        """Wait until none that was ever seen lives any more, except for commands like `but`; returns the seconds it took."""
        began = time.monotonic()

        def left() -> list[int]:
            alive = [pid for pid, start in self.seen if _start_time(pid) == start]
            names = commands(self.run) if alive else {}
            return [pid for pid in alive if not but(names.get(pid, ""))]

        wait_for(lambda: not left(), seconds, "end of all processes")
        self.seen.clear()
        return time.monotonic() - began


def _start_time(pid: int) -> str:
    """What tells a process from a later one with its number; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def scontrol(*arguments: str) -> str:
    return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, check=True, timeout=30).stdout


def near_the_limit(job: str, seconds: int) -> None:
    """Lower a running job's time limit so that its warning, `signal_seconds` before the end, is due now."""
    scontrol("update", f"JobId={job}", f"TimeLimit={seconds // 60 + 2}")


def occupy(*options: str, seconds: int) -> str:
    """Take both nodes for a while with a job of someone else; returns its id."""
    argv = ["sbatch", "--parsable", "-N2", "--exclusive", "-o", "/dev/null", "-t", "5", *options, "--wrap", f"sleep {seconds}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def trained(run: RunDir) -> dict[int, list[str]]:
    """Step -> prompts, as the ledger stands: a later attempt supersedes the steps that it repeats."""
    ledger: dict[int, list[str]] = {}
    for number in run.attempt_numbers():
        events = [e for e in EventReader(run.attempt(number) / "events").poll() if e["kind"] == "metrics"]
        for event in events:
            ledger = {step: prompts for step, prompts in ledger.items() if step < event["step"]} if event is events[0] else ledger
            ledger[event["step"]] = event["prompts"]
    return ledger


def exits(run: RunDir) -> list[dict[str, Any]]:
    """Exit records in the order of the attempts; an attempt without one is left out."""
    paths = [run.attempt(number) / "exit.json" for number in run.attempt_numbers()]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def assert_trained_once(run: RunDir, steps: int) -> None:
    """Every step from the first to `steps`, and every prompt, exactly once."""
    ledger = trained(run)
    assert sorted(ledger) == list(range(1, steps + 1))
    prompts = [prompt for step in sorted(ledger) for prompt in ledger[step]]
    assert len(prompts) == len(set(prompts))


def assert_nothing_left(run: RunDir, seconds: float = 30) -> None:
    """No process of the run on any node, by marker or by command line; both nodes are on this machine."""
    mark = f"{run.path}:"
    wait_for(
        lambda: not (processes.marked(lambda value: value.startswith(mark)) or commands(run)), seconds, "end of all processes"
    )
