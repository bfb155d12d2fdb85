"""A scripted Source: fixed runs, a fixed clock, and a list of what was asked of it."""

from __future__ import annotations

import math
from dataclasses import replace

from molt_tui.bands import BandPoint, Spread
from molt_tui.comparison import Comparison, Several, Subject
from molt_tui.facts import Facts
from molt_tui.tui.source import NoteLine, RunLine
from molt_tui.tui.view import EventLine, RunView
from molt_tui.verdict import Timeline, Verdict, judge
from tests.tui.fake_data import FakeData
from tests.tui.fake_launch import FakeLaunch

T0 = 1_800_000_000.0

RUNS = (
    RunLine("20270115-0812-sums-moe-a1f3", "sums-moe", "running", step=142, max_steps=400, version=142, attempts=1,
            reward=0.53, age_s=1, created=T0, group="sums",
            tags=("moe", "r3"), recipe="demo", host="node-a",
            verdict=Verdict("generation-bound", "warning", "generation-bound: trainer idle 62 %, queue 0 of 16")),
    RunLine("20270115-0610-sums-dense-77c0", "sums-dense", "completed", step=400, max_steps=400, version=400, attempts=1,
            reward=0.91, age_s=7200, created=T0 - 9000,
            recipe="demo", host="node-a"),
    RunLine("20270114-2201-chat-9b12", "chat-countdown", "failed", "reward is missing for 12 of 12 rollouts", step=7,
            max_steps=1000, version=7, attempts=2, reward=float("nan"), age_s=40000,
            created=T0 - 50000, last_checkpoint=5, recipe="countdown", job_id="81234", host="node-c"),
    RunLine("20270114-1900-long-0c55", "long-horizon", "paused", step=88, max_steps=2000, version=88, attempts=3, reward=0.2,
            age_s=3, created=T0 - 60000, tags=("agents",), recipe="agents"),
)  # fmt: skip

TRENDS = {
    RUNS[0].id: tuple((i, 0.1 + 0.005 * i) for i in range(20)), RUNS[1].id: tuple((i, math.tanh(i / 12)) for i in range(20)),
    RUNS[2].id: ((5, 0.2), (6, 0.1), (7, math.nan)), RUNS[3].id: ((85, 0.1), (86, 0.15), (87, 0.2), (88, 0.2)),
}  # fmt: skip

METRICS = {
    "queue/depth": 5, "queue/capacity": 16, "queue/in_flight_groups": 12, "queue/in_flight_rollouts": 96,
    "staleness/hist": [5200, 2100, 340], "staleness/mean": 0.364, "staleness/p95": 1.0, "staleness/max": 2,
    "staleness/masked_tokens": 12, "staleness/dropped_rollouts": 0, "is/masked_frac": 0.031, "is/masked_low_frac": 0.010,
    "is/masked_high_frac": 0.021, "is/ess_frac": 0.94, "is/kept_grad_frac": 0.97, "is/ratio_mean": 1.0023,
    "mismatch/k3_kl": 1.3e-4, "mismatch/abs_diff": 0.0081, "offpolicy/k3_kl": 2.1e-3, "routing/mismatch_frac": 0.041,
    "routing/replayed_mismatch_frac": 0.0, "routing/coverage_frac": 0.998, "routing/layer_mismatch": [0.03, 0.05],
    "reward/mean": 0.53, "reward/std": 0.49, "reward/max": 1.0, "reward/zero_std_group_frac": 0.22,
    "eval/heldout/exact_frac": 0.61, "loss/policy": -0.0123, "loss/entropy": 0.83, "optim/grad_norm": 1.21, "optim/lr": 1e-3,
    "time/step": 2.31, "time/wait_batch": 0.21, "time/prepare": 0.08, "time/forward_backward": 1.62, "time/optim": 0.11,
    "time/weight_sync": 0.19, "time/probe": 0.05, "time/trainer_idle_frac": 0.13, "time/rollout_idle_frac": 0.05,
    "perf/rollout_tok_s": 4120.0, "perf/train_tok_s": 5010.0, "engine/running/min": 40, "engine/running/mean": 48,
    "engine/running/max": 56, "engine/running/worst": "engine 0", "engine/kv_frac/min": 0.21, "engine/kv_frac/mean": 0.32,
    "engine/kv_frac/max": 0.58, "engine/kv_frac/worst": "engine 1", "engine/version/mean": 142, "engine/version/min": 142,
    "engine/version/max": 142, "host/cpu/min": 0.93, "host/cpu/mean": 0.93, "host/cpu/max": 0.93, "host/mem/min": 0.41,
    "host/mem/mean": 0.41, "host/mem/max": 0.41,
}  # fmt: skip

EVENTS = tuple(
    EventLine(T0 - 60 + 7 * i, kind, text)
    for i, (kind, text) in enumerate([
        ("phase", "starting"), ("phase", "running"), ("eval", "eval 0.49 at step 100, heldout"),
        ("checkpoint", "step 120 saved in 0.4 s, 2.1 MB"), ("control", "max_staleness set to 2 by ada"),
        ("fault", "rollout retried: environment timed out"), ("eval", "eval 0.61 at step 140, heldout"),
    ])
)  # fmt: skip


def curve(count: int, scale: float, wobble: float) -> list[tuple[float, float]]:
    return [(i, scale * math.tanh(i / 60) + wobble * math.sin(i * 1.7) * math.sin(i * 0.31)) for i in range(1, count + 1)]


LAYERS = tuple((i, None if 60 <= i < 70 else (0.3 * math.exp(-i / 40), 0.004, 0.0)) for i in range(1, 143))


def view(**changes) -> RunView:
    """The dashboard of RUNS[0]; `metrics` replaces or (None) removes single metrics, other names replace fields."""
    metrics = {**METRICS, **changes.pop("metrics", {})}
    metrics = {k: v for k, v in metrics.items() if v is not None}
    facts = Facts("running", step=142, max_steps=400, beat_age_s=1.0, metrics=metrics, steps=dict.fromkeys(metrics, 142))
    facts = replace(facts, **changes.pop("facts", {}))
    curves = {"reward/mean": curve(142, 0.55, 0.04), "eval/heldout/exact_frac": [(i, 0.6 * i / 142) for i in range(0, 141, 20)],
              "loss/policy": curve(142, -0.02, 0.02), "is/masked_frac": curve(142, 0.03, 0.01),
              "queue/depth": [(i, i % 7) for i in range(142)], "mismatch/k3_kl": curve(142, 1e-4, 3e-5)}  # fmt: skip
    run = RUNS[0]
    values = {
        "run_id": run.id, "name": run.name, "facts": facts, "verdicts": judge(facts), "version": 142, "attempt": 1, "age_s": 1.0,
        "newest_step": 142, "layers": LAYERS,
        "config": {"train.max_staleness": 2, "algo.advantage.is_correction_level": "token"}, "curves": curves,
        "events": EVENTS, "log": tuple(f"line {i}" for i in range(1, 60)),
    }  # fmt: skip
    return RunView(**{**values, **changes})


def comparison(refs, metric="reward/mean", by="step") -> Comparison:
    """Every second subject is a group with a band; settings and final metrics that tell them apart."""
    subjects = [Subject(ref, ref.removeprefix("group:"), ("a", "b", "c") if ref.startswith("group:") else (ref,)) for ref in refs]
    curves = [[BandPoint(i, (0.4 + 0.1 * k) * math.tanh(i / 40), 0.03 if s.is_group else None, 1) for i in range(1, 121)]
              for k, s in enumerate(subjects)]  # fmt: skip
    final = {key: [Spread(0.4 + k / 10, 0.03, 3) if s.is_group else 0.4 + k / 10 for k, s in enumerate(subjects)]
             for key in ("reward/mean", "loss/entropy", "mismatch/k3_kl")}  # fmt: skip
    settings = {"actor.adam.lr": [1e-3 / (k + 1) for k in range(len(refs))],
                "train.seed": [Several((1, 2, 3)) if s.is_group else 42 for s in subjects]}  # fmt: skip
    return Comparison(tuple(subjects), metric, by, settings, final, {"reward/mean": len(refs) - 1}, curves)


class FakeSource(FakeLaunch, FakeData):
    def __init__(self) -> None:
        super().__init__()
        self.lines = list(RUNS)
        self.shown = view()
        self.calls: list[tuple] = []
        self.error: str | None = None
        self.trend = dict(TRENDS)
        self.remarks: list[NoteLine] = []

    def ingest(self) -> None:
        if self.error:
            raise OSError(self.error)

    def runs(self):
        return list(self.lines)

    def trends(self, run_ids):
        return {run_id: self.trend.get(run_id, ()) for run_id in run_ids}

    def notes(self, run_id: str):
        return list(self.remarks)

    def retag(self, run_ids, add, remove) -> str:
        self.calls.append(("retag", *run_ids, tuple(add), tuple(remove)))
        return "tagged"

    def note(self, run_ids, text: str) -> str:
        self.calls.append(("note", *run_ids, text))
        return "noted"

    def delete(self, run_ids) -> str:
        self.calls.append(("delete", *run_ids))
        self.lines = [run for run in self.lines if run.id not in run_ids]
        return f"deleted {len(run_ids)}"

    def compare(self, refs, metric, by):
        self.calls.append(("compare", *refs, metric, by))
        return comparison(refs, metric, by)

    def comparison_text(self, refs, metric, by) -> str:
        return f"| metric | {' | '.join(refs)} |"

    def export_comparison(self, refs, metric, by, path) -> str:
        self.calls.append(("export", path))
        return f"written to {path}"

    def timeline(self, run_id: str) -> Timeline:
        levels = {"mismatch-spike": (None,) * 30 + ("warning",) * 30, "not-finite": (None,) * 50 + ("critical",) * 10}
        return Timeline(tuple(range(1, 121, 2)), levels)

    def run(self, run_id: str, points: int, at: int | None = None, metric: str | None = None) -> RunView:
        """The same run; at a step of the past its reward is that of the curve, so that scrubbing shows."""
        shown = replace(self.shown, run_id=run_id, chosen=metric)
        if metric is not None and metric not in shown.curves:
            shown = replace(shown, curves={**shown.curves, metric: curve(142, 3.0, 0.2)})
        if at is None:
            return shown
        reward = next((y for x, y in shown.curves.get("reward/mean", ()) if x == at), 0.0)
        metrics = {**shown.metrics, "reward/mean": reward, "queue/depth": at % 7}
        facts = replace(shown.facts, state="running", step=at, metrics=metrics, steps=dict.fromkeys(metrics, at), beat_age_s=None)
        return replace(shown, at=at, facts=facts, verdicts=judge(facts), version=at - 1)

    def control(self, run_id: str, name: str, args=None) -> str:
        self.calls.append((name, run_id))
        return f"{name} sent to {run_id}"
