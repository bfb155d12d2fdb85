"""Print what every process of a run on this node is doing: `python slurm/stacks.py RUNDIR`.

Uses py-spy where it is installed; else the kernel's view (state, what it waits in) of each thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine import processes


def describe(pid: int) -> str:
    """Command line and threads of one process; py-spy's stacks when it may look."""
    proc = Path("/proc") / str(pid)
    try:
        command = proc.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"{pid}: gone"
    spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
    if os.path.exists(spy):
        done = subprocess.run([spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=20)
        if done.returncode == 0:
            return f"{pid} {command[:160]}\n{done.stdout.rstrip()}"
    threads = []
    for task in sorted((proc / "task").glob("*")) if proc.exists() else []:
        try:
            name = (task / "comm").read_text().strip()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            wait = (task / "wchan").read_text().strip() or "running"
        except OSError:
            continue
        threads.append(f"    {name:<16} {state} {wait}")
    return f"{pid} {command[:160]}\n" + "\n".join(threads[:64])


def of_run(run: str) -> set[int]:
    """Processes of a run: with its marker, below one that has it, or with the run directory on the command line."""
    named = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if run.encode() in entry.read_bytes().split(b"\0"):
                named.add(int(entry.parent.name))
    return (named | processes.family(lambda value: value.startswith(f"{run}:"))) - {os.getpid(), os.getppid()}


def main() -> int:
    run = str(Path(sys.argv[1]).resolve())
    found = [describe(pid) for pid in sorted(of_run(run))]
    # In one piece, so that the nodes' answers do not mix.
    print("\n".join([f"== {os.environ.get('SLURMD_NODENAME', os.uname().nodename)}: {len(found)} processes", *found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
