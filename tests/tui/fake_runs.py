"""Runs in groups for the Runs and Compare screens: four seeds of which one is sick and one failed, three done, and others."""

from __future__ import annotations

from dataclasses import replace

from molt_tui.tui.source import RunLine
from molt_tui.verdict import Verdict
from tests.tui.fake_source import RUNS, T0, FakeSource

KL = Verdict("kl-spike", "critical", "KL to the reference is 8.1, 40x its usual value", "lower actor.adam.lr or raise kl.coef")


def seed(group: str, number: int, **fields) -> RunLine:
    base = RunLine(f"2027-{group}-s{number}", f"{group}-s{number}", "running", step=100 + number, max_steps=400, attempts=1,
                   reward=0.5 + 0.02 * number, age_s=2, created=T0 - 100 - number, group=group, tags=("seeds",), recipe="demo",
                   host="node-b", job_id=str(900 + number))  # fmt: skip
    return replace(base, **fields)


SEEDS = (
    seed("lr3e-6", 0), seed("lr3e-6", 1, verdict=KL), seed("lr3e-6", 2),
    seed("lr3e-6", 3, state="failed", detail="CUDA out of memory on rank 2", age_s=900, tags=("seeds", "oom")),
    *(seed("lr1e-6", n, state="completed", step=400, age_s=7200, created=T0 - 5e3 - n, reward=0.7 + 0.01 * n) for n in range(3)),
)  # fmt: skip


def grouped_source(extra=RUNS) -> FakeSource:
    source = FakeSource()
    source.lines = [*SEEDS, *extra]
    source.trend |= {run.id: tuple((i, i * (run.reward or 0.0)) for i in range(12)) for run in SEEDS}
    return source
