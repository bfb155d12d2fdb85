"""A stand-in for the engine that joins the attempt's Ray, puts an actor on every node, and notes what it saw."""

from __future__ import annotations

import json
import os
import sys
import time

import ray

from engine.lifeline import hold
from engine.wire import RunDir


@ray.remote(num_cpus=1)
class Where:
    def node(self) -> str:
        return os.environ["SLURMD_NODENAME"]


def main() -> int:
    hold()
    run = RunDir(sys.argv[2])
    plan = json.loads((run.path / "toy.json").read_text())
    ray.init(address=os.environ["MOLT_RAY_ADDRESS"], configure_logging=False)
    count = int(os.environ["MOLT_RAY_NODES"])
    while sum(node["Alive"] for node in ray.nodes()) < count:
        time.sleep(0.2)
    actors = [Where.options(resources={f"molt_node_{i}": 0.001}).remote() for i in range(count)]
    names = ray.get([actor.node.remote() for actor in actors])
    time.sleep(plan["seconds"])
    assert len(ray.nodes()) == count
    (run.path / "ray-nodes.json").write_text(json.dumps(names))
    time.sleep(plan["seconds"])
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
