"""One attempt on all nodes of the allocation: Ray by one srun task per node, then the controller, then the end of both.

`python -m slurm.attempt RUNDIR --attempt N`, started by the supervisor in place of the controller.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.lifeline import PIPE_VARIABLE
from engine.wire import EXIT_FAILED, EXIT_STOPPED, RunDir, encode_line, write_atomic
from slurm.allocation import Job, Settings, read_settings

START_SECONDS = 600.0
LET_GO_SECONDS = 12.0


def in_container(job: Job, run: RunDir, settings: Settings) -> tuple[list[str], list[str]]:
    """(options for srun, words before a command) that put a command into the container; both empty without one."""
    if settings.container is None:
        return [], []
    library = job.environment.get("MOLT_LIBRARY", "")
    mounts = [f"{run.path}:{run.path}", f"{library}:{library}", *settings.container_mounts]
    if settings.container_kind == "pyxis":
        return [f"--container-image={settings.container}", f"--container-mounts={','.join(mounts)}"], []
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return [], ["apptainer", "exec", "--nv", *binds, settings.container]


def step(job: Job, nodes: int, options: list[str]) -> list[str]:
    """srun with one task on each of `nodes` nodes, beside whatever else runs in the job."""
    argv = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--mem=0",
            "--mpi=none", "--input=none", "--kill-on-bad-exit=0", *options]  # fmt: skip
    cpus = job.environment.get("SLURM_CPUS_PER_TASK")  # since 22.05 srun does not inherit it
    return [*argv, f"--cpus-per-task={cpus}"] if cpus else argv


def nodes_command(job: Job, run: RunDir, number: int, settings: Settings, python: str) -> list[str]:
    """One task per node, each of which holds Ray there until the attempt ends."""
    options, prefix = in_container(job, run, settings)
    log = run.attempt(number) / "logs" / "node-%n.log"
    step_of_all = step(job, job.nodes, [f"--output={log}", f"--error={log}", *options])
    return [*step_of_all, *prefix, python, "-m", "slurm.node", str(run.path), str(number)]


def controller_command(job: Job, run: RunDir, number: int, settings: Settings, python: str) -> list[str]:
    """The controller, on this node; a pyxis container is entered through srun."""
    options, prefix = in_container(job, run, settings)
    head = step(job, 1, ["--nodelist=" + job.environment.get("SLURMD_NODENAME", ""), *options]) if options else []
    return [*head, *prefix, python, "-m", "engine", "attempt", str(run.path), "--attempt", str(number)]


def without_lifeline(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != PIPE_VARIABLE}


class NodesFailed(Exception):
    """Ray did not come up, or its step ended; the message says why."""


class Attempt:
    """Everything of one attempt that runs under the supervisor."""

    def __init__(self, run: RunDir, number: int) -> None:
        self.run, self.number = run, number
        self.job, self.settings = Job.here(), read_settings(run)
        self.folder = run.attempt(number)
        self.python = os.environ.get("MOLT_PYTHON") or sys.executable
        self.nodes: subprocess.Popen[bytes] | None = None
        self.controller: subprocess.Popen[bytes] | None = None
        self.stopped = False

    def execute(self) -> int:
        """Returns the controller's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        environment = self._environment()
        try:
            self.nodes = self._start_nodes(environment)
            address = self._wait_for_head()
            if self.stopped:
                return EXIT_STOPPED
            self.controller = self._start_controller(environment | {"MOLT_RAY_ADDRESS": address})
            return self._wait()
        except NodesFailed as failed:
            self._progress(f"NodeStartError: {failed}")
            print(f"NodeStartError: {failed}", file=sys.stderr, flush=True)
            return EXIT_STOPPED if self.stopped else EXIT_FAILED
        finally:
            self._end()

    def _environment(self) -> dict[str, str]:
        """Ray's token and ports stay inside the attempt; the token is a file that only the user can read."""
        token = self.folder / "ray.token"
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        return os.environ | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "MOLT_RAY_NODES": str(self.job.nodes), "MOLT_ACTORS": str(self.settings.actors),
            "MOLT_OBJECT_STORE_GB": str(self.settings.object_store_gb or ""),
        }  # fmt: skip

    def _start_nodes(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = nodes_command(self.job, self.run, self.number, self.settings, self.python)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=without_lifeline(environment))

    def _wait_for_head(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        path = self.folder / "ray.json"
        while time.monotonic() < deadline and not self.stopped:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(path.read_bytes())["address"])
            self._check_nodes()
            time.sleep(0.1)
        if self.stopped:
            return ""
        raise NodesFailed(f"Ray's head did not come up within {START_SECONDS:.0f} s; see logs/node-0.log of the attempt")

    def _check_nodes(self) -> None:
        if self.nodes is not None and self.nodes.poll() is not None:
            raise NodesFailed(f"the step that holds Ray ended (srun exit code {self.nodes.returncode}); see logs/node-*.log")

    def _start_controller(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = controller_command(self.job, self.run, self.number, self.settings, self.python)
        if command[0] == "srun":  # its task inherits no pipe; Slurm ends it when the batch script is gone
            environment = without_lifeline(environment)
        lifeline = [int(environment[PIPE_VARIABLE])] if PIPE_VARIABLE in environment else []
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=lifeline)

    def _wait(self) -> int:
        """Wait for the controller; when Ray's step ends first it gets a moment to notice, then it is ended."""
        assert self.controller is not None and self.nodes is not None
        lost_at = None
        while (code := self.controller.poll()) is None:
            if lost_at is None and self.nodes.poll() is not None:
                lost_at = time.monotonic()
            if lost_at is not None and time.monotonic() - lost_at > LET_GO_SECONDS:
                self.controller.kill()
                self.controller.wait()
                raise NodesFailed("the step that holds Ray ended while the run was at work; see logs/node-*.log")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.controller.wait(0.5)
        if code < 0:  # the supervisor should see what ended the controller
            self._end()
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
        return code

    def _on_signal(self, number: int, _frame: object) -> None:
        self.stopped = True
        if self.controller is not None and self.controller.poll() is None:
            self.controller.send_signal(signal.SIGTERM)

    def _progress(self, error: str) -> None:
        with contextlib.suppress(OSError):
            path = self.folder / "progress.json"
            before = json.loads(path.read_bytes()) if path.exists() else {}
            write_atomic(path, encode_line(before | {"phase": "stopping", "error": error}))

    def _end(self) -> None:
        """Tell every node to end Ray, wait for the step, then remove the token."""
        with contextlib.suppress(OSError):
            (self.folder / "ray.end").touch()
        if self.nodes is not None and self.nodes.poll() is None:
            try:
                self.nodes.wait(LET_GO_SECONDS)
            except subprocess.TimeoutExpired:
                self.nodes.kill()
                self.nodes.wait()
        (self.folder / "ray.token").unlink(missing_ok=True)


def main() -> int:
    run, number = RunDir(Path(sys.argv[1])), int(sys.argv[sys.argv.index("--attempt") + 1])
    return Attempt(run, number).execute()


if __name__ == "__main__":
    sys.exit(main())
