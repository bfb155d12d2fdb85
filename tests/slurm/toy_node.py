"""A stand-in for Ray on one node: publishes an address as node.py does, then waits for the end of the attempt."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from engine.wire import RunDir, encode_line, write_atomic
from slurm.node import Node


def main() -> int:
    node = Node(RunDir(Path(sys.argv[1])), int(sys.argv[2]))
    signal.signal(signal.SIGTERM, node._on_signal)
    node.scratch.rmdir()
    folder = node.folder / "nodes"
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"{node.index}.json", encode_line({"node": os.environ["SLURMD_NODENAME"], "pid": os.getpid()}))
    if node.index == 0:
        write_atomic(node.folder / "ray.json", encode_line({"address": "127.0.0.1:1", "node": os.environ["SLURMD_NODENAME"]}))
    while not node._over():
        time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
