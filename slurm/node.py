"""Ray on one node of an attempt: `python -m slurm.node RUNDIR N` as one srun task per node.

The first node is the head. Every port is chosen by the system, the head's address is published in the run directory, the
temporary directory is the attempt's own, and what is left at the end is found by the attempt's marker and killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine import processes
from engine.wire import DIR_MODE, RunDir, encode_line, write_atomic

HEAD_SECONDS = 300.0
END_SECONDS = 6.0
WATCH_SECONDS = 1.0


def address_towards(host: str) -> str | None:
    """The local address from which `host` is reached; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return probe.getsockname()[0]
    except OSError:
        return None


def own_address(names: list[str]) -> str:
    """The address by which other nodes reach this one: that of its name, unless the name is bound to loopback."""
    for name in (os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()):
        with contextlib.suppress(OSError):
            found = socket.gethostbyname(name) if name else ""
            if found and not found.startswith("127."):
                return found
    others = (address_towards(name) for name in names)
    return next((a for a in others if a and not a.startswith("127.")), "127.0.0.1")


def gpus_here(environment: dict[str, str]) -> int:
    """GPUs that Slurm gave on this node."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        return len([g for g in visible.split(",") if g.strip()])
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if count.isdigit() else 0


class Node:
    """Ray on this node, from start to the last process."""

    def __init__(self, run: RunDir, number: int) -> None:
        self.run, self.number = run, number
        self.folder = run.attempt(number)
        self.index = int(os.environ.get("SLURM_PROCID") or 0)
        self.marker = f"{run.path}:{number}:node{self.index}"
        # Unix socket paths may have 107 bytes in all, of which Ray wants about 70.
        base = tempfile.gettempdir()
        self.scratch = Path(tempfile.mkdtemp(prefix="molt", dir=base if len(base) <= 16 else "/tmp"))
        self.ray: subprocess.Popen[bytes] | None = None
        self.told_to_end = False

    def execute(self) -> int:
        """0 when the attempt ended, 1 when Ray ended by itself."""
        processes.become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        try:
            head = None if self.index == 0 else self._wait_for_head()
            if self._over():
                return 0
            self.ray = self._start(head)
            if head is None:
                self._publish()
            return self._watch()
        finally:
            self._end()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.told_to_end = True

    def _wait_for_head(self) -> str:
        deadline = time.monotonic() + HEAD_SECONDS
        while time.monotonic() < deadline and not self._over():
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads((self.folder / "ray.json").read_bytes())["address"])
            time.sleep(0.2)
        if self._over():
            return ""
        raise SystemExit(f"the head published no address within {HEAD_SECONDS:.0f} s")

    def _start(self, head: str | None) -> subprocess.Popen[bytes]:
        """Start `ray start --block`; the process and all it starts carry this node's marker."""
        cpus = max(int(os.environ.get("SLURM_CPUS_ON_NODE") or os.cpu_count() or 1), int(os.environ.get("MOLT_ACTORS") or 1))
        resources = {f"molt_node_{self.index}": 1000}
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
                f"--temp-dir={self.scratch}", f"--num-cpus={cpus}", f"--num-gpus={gpus_here(dict(os.environ))}",
                f"--resources={json.dumps(resources)}", "--min-worker-port=0", "--max-worker-port=0", "--node-manager-port=0",
                "--object-manager-port=0", "--dashboard-agent-listen-port=0", "--log-color=false"]  # fmt: skip
        if store := os.environ.get("MOLT_OBJECT_STORE_GB"):
            argv.append(f"--object-store-memory={int(float(store) * 2**30)}")
        if head is None:
            self.address = own_address(_other_nodes())
            argv += ["--head", "--port=0", "--include-dashboard=false", f"--node-ip-address={self.address}"]
        else:
            self.address = address_towards(head.rpartition(":")[0]) or own_address([])
            argv += [f"--address={head}", f"--node-ip-address={self.address}"]
        print(" ".join(argv[1:]), flush=True)
        environment = os.environ | {processes.MARKER: self.marker}
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment, start_new_session=True, cwd=self.scratch)

    def _publish(self) -> None:
        """Write the head's address once Ray has chosen its port."""
        chosen = self.scratch / "ray_current_cluster"
        while not self._over() and self.ray is not None and self.ray.poll() is None:
            with contextlib.suppress(OSError):
                address = chosen.read_text().strip()
                if address:
                    record = {"address": address, "node": os.environ.get("SLURMD_NODENAME", socket.gethostname())}
                    write_atomic(self.folder / "ray.json", encode_line(record))
                    return
            time.sleep(0.1)

    def _watch(self) -> int:
        self._report()
        while not self._over():
            assert self.ray is not None
            try:
                code = self.ray.wait(WATCH_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            if self._over():
                return 0
            print(f"ray ended by itself, exit code {code}", flush=True)
            return 1
        return 0

    def _report(self) -> None:
        record = {"node": os.environ.get("SLURMD_NODENAME", socket.gethostname()), "address": self.address,
                  "gpus": gpus_here(dict(os.environ)), "pid": os.getpid()}  # fmt: skip
        with contextlib.suppress(OSError):
            nodes = self.folder / "nodes"
            nodes.mkdir(mode=DIR_MODE, exist_ok=True)
            write_atomic(nodes / f"{self.index}.json", encode_line(record))

    def _over(self) -> bool:
        """Whether the attempt has ended, also when the node from which it was led is gone."""
        ended = (self.folder / "ray.end").exists() or (self.folder / "exit.json").exists()
        return self.told_to_end or ended or self.run.attempt(self.number + 1).exists()

    def _members(self) -> set[int]:
        return processes.descendants(os.getpid()) | processes.marked(lambda value: value == self.marker)

    def _end(self) -> None:
        """TERM to Ray, a moment, then KILL for all that is left; keep the end of Ray's logs when it ended by itself."""
        if self.ray is not None and self.ray.poll() is None:
            self.ray.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ray.wait(END_SECONDS)
        left = processes.kill_until_gone(self._members, END_SECONDS)
        if left:
            print(f"could not kill {sorted(left)}", flush=True)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _other_nodes() -> list[str]:
    """Names of the job's nodes, as far as this node can resolve them without Slurm's help."""
    try:
        done = subprocess.run(["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")], capture_output=True,
                              text=True, timeout=10)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(Node(RunDir(Path(sys.argv[1])), int(sys.argv[2])).execute())
