"""Makes pathologies in molt_tui/scenarios/ from the recorded healthy run: `python -m tests.make_scenarios [NAME...]`. (Others
are recordings of runs of the real engine, see molt_tui/scenarios/recorder.py: equal-rewards, failing-rollouts, and healthy,
which is `python -m engine run demo --train.max_steps 150 --eval.steps 50`.)

Each is a function over the recorded steps. It changes every metric that the fault would change, from step ONSET on; times of
events follow from time/step. What the fault does not touch stays as it was recorded.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.metrics import spread
from engine.protocol import ExitReason
from engine.wire import to_wire
from molt_tui.scenarios.archive import FOLDER, SUFFIX, Ending, Scenario, load, parse
from molt_tui.scenarios.recorder import pack

SOURCE, ONSET, LAST, DIGITS = "healthy", 60, 96, 4
ENGINE_START = 12.0  # seconds before the first step: those of the recording, shortened
STOPPING_S = 5.0  # between being told to stop and being killed
NAN = math.nan


@dataclass
class Step:
    """One recorded step: its metrics, and what else happened right after it."""

    step: int
    metrics: dict[str, Any]
    also: list[dict[str, Any]] = field(default_factory=list)  # records of the same stream without time
    log: list[str] = field(default_factory=list)

    @property
    def sick(self) -> bool:
        return self.step >= ONSET

    @property
    def grown(self) -> float:
        """How far the pathology is: 0 at its onset, 1 at the end."""
        return min(1.0, max(0.0, (self.step - ONSET) / (LAST - ONSET)))

    def scale(self, **factors: float) -> None:
        for key, factor in factors.items():
            self.metrics[key.replace("__", "/")] *= factor

    def put(self, **values: Any) -> None:
        for key, value in values.items():
            self.metrics[key.replace("__", "/")] = value

    def fault(self, what: str, detail: str, fatal: bool = False) -> None:
        self.also.append({"kind": "fault", "step": self.step, "what": what, "detail": detail, "fatal": fatal})

    def evaluated(self, score: float) -> None:
        metrics = {"eval/number_sorting/exact_frac": score, "eval/number_sorting/score_mean": 0.4 + 0.6 * score,
                   "eval/number_sorting/rollouts": 200.0}  # fmt: skip
        self.also.append({"kind": "eval", "step": self.step, "version": self.step, "metrics": metrics})

    def retime(self, wait: float, train: float = 1.0, engines_idle: float | None = None) -> None:
        """Wait for batches and train this many times as long; what follows from the times follows."""
        m = self.metrics
        before = m["time/step"]
        change = {"time/wait_batch": m["time/wait_batch"] * wait, "time/forward_backward": m["time/forward_backward"] * train}
        m["time/step"] = before + sum(new - m[key] for key, new in change.items())
        m.update(change)
        m["time/trainer_idle_frac"] = min(0.999, m["time/wait_batch"] / m["time/step"])
        if engines_idle is not None:
            m["time/rollout_idle_frac"] = engines_idle
        for key in ("perf/rollout_tok_s", "perf/train_tok_s", "perf/kept_tok_s"):
            if key in m:
                m[key] *= before / m["time/step"]


Steps = list[Step]


@dataclass(frozen=True)
class Pathology:
    """`settings`: flat keys of run.toml that differ; `ending`, `reason`, `failure`: how the recording ends (see
    archive.Ending), by which exit reason and in which words; `time_left`: of the job at the start, as a multiple of what is
    recorded."""

    title: str
    about: str
    verdict: str
    change: Callable[[Steps, random.Random], None]
    ending: Ending = "live"
    failure: str = ""
    reason: ExitReason = "failed"
    settings: dict[str, Any] = field(default_factory=dict)
    time_left: float | None = None


PATHOLOGIES: dict[str, Pathology] = {}


def pathology(name: str, title: str, verdict: str, **more: Any) -> Callable[[Callable], Callable]:
    """Registers a change of the recording; its docstring is the scenario's `about`."""

    def add(change: Callable) -> Callable:
        PATHOLOGIES[name] = Pathology(title, " ".join((change.__doc__ or "").split()), verdict, change, **more)
        return change

    return add


def sick(steps: Steps) -> Iterator[Step]:
    return (step for step in steps if step.sick)


@pathology("nan-loss", "The loss becomes NaN", "not-finite")
def _nan(steps: Steps, dice: random.Random) -> None:
    """A gradient that is not finite from step 60 on: the optimizer skips every step and the version stands still."""
    told = {"kind": "alert", "step": ONSET, "version": ONSET - 1, "rule": "not_finite",
            "message": "optim/grad_norm is nan: such a step leaves the weights as they are"}  # fmt: skip
    steps[ONSET - 1].also.append(told)
    for s in sick(steps):
        s.put(loss__policy=NAN, loss__entropy=NAN, optim__grad_norm=NAN, offpolicy__k3_kl=NAN, offpolicy__abs_diff=NAN,
              is__ratio_mean=NAN, optim__skipped=1.0, perf__kept_tok_s=0.0)  # fmt: skip
        s.log.append(f"step {s.step}: the gradient is not finite, no optimizer step")


@pathology("all-masked", "Every token is masked", "all-masked", settings={"train.routing_replay": False})
def _all_masked(steps: Steps, dice: random.Random) -> None:
    """Without routing replay the sampler and the trainer drift apart until the correction masks all tokens: no gradient."""
    for s in steps:
        s.metrics.pop("routing/replayed_mismatch_frac", None)
    for s in sick(steps):
        s.put(is__masked_frac=1.0, is__masked_low_frac=0.83, is__masked_high_frac=0.17, is__kept_grad_frac=0.0, loss__policy=0.0,
              optim__grad_norm=0.0, perf__kept_tok_s=0.0, is__ratio_mean=0.31, offpolicy__k3_kl=1.9 + dice.gauss(0, 0.1),
              offpolicy__abs_diff=2.2, routing__mismatch_frac=0.41, routing__token_mismatch_frac=0.66,
              routing__layer_mismatch=[0.37, 0.45])  # fmt: skip
        s.metrics.pop("is/ess_frac")


@pathology("starving-queue", "The trainer starves", "starving")
def _starving(steps: Steps, dice: random.Random) -> None:
    """The engines became ten times slower: the queue is empty and the trainer waits nearly all the time."""
    for s in sick(steps):
        s.put(time__wait_batch=max(0.6, s.metrics["time/wait_batch"]))
        s.retime(wait=12.0, engines_idle=0.004)
        s.put(queue__depth=0, queue__in_flight_groups=64, queue__in_flight_rollouts=512)
        engines(s, {"engine-0": {"running": 250.0, "waiting": 262.0, "kv_frac": 0.97}})


@pathology("generation-bound", "Generation is the bottleneck", "generation-bound")
def _generation_bound(steps: Steps, dice: random.Random) -> None:
    """Not a fault: the engines need twice as long as the trainer. The queue is often empty, nothing is lost."""
    for s in steps:
        s.put(time__wait_batch=max(0.5, s.metrics["time/wait_batch"]))
        s.retime(wait=2.2, engines_idle=0.02 + 0.02 * dice.random())
        s.put(queue__depth=dice.choice((0, 0, 1, 3)), queue__in_flight_groups=63, queue__in_flight_rollouts=500)


@pathology("trainer-bound", "Training is the bottleneck", "trainer-bound")
def _trainer_bound(steps: Steps, dice: random.Random) -> None:
    """Not a fault: the trainer needs three times as long as the engines. The queue is full and the engines rest."""
    for s in steps:
        s.retime(wait=0.01, train=3.5, engines_idle=0.6 + 0.1 * dice.random())
        s.put(queue__depth=64, queue__in_flight_groups=0, queue__in_flight_rollouts=0)


@pathology("staleness-bound", "Staleness at its bound", "staleness-bound", settings={"train.max_staleness": 4})
def _staleness_bound(steps: Steps, dice: random.Random) -> None:
    """Rollouts became long: most tokens are as old as allowed, and a part is over age and masked."""
    for s in sick(steps):
        total = sum(s.metrics["staleness/hist"])
        shares = (0.01, 0.02, 0.04, 0.13, 0.80)
        s.put(staleness__hist=[round(total * share) for share in shares], staleness__mean=3.69, staleness__p95=4.0,
              staleness__max=4.0, staleness__masked_tokens=round(0.09 * total), staleness__dropped_rollouts=1.0,
              staleness__spanning_rollouts=240.0)  # fmt: skip
        s.scale(rollout__response_len_mean=1.5, is__ess_frac=0.7)
        s.put(is__masked_frac=0.12 + 0.02 * dice.random(), is__masked_low_frac=0.11, is__masked_high_frac=0.02)


@pathology("kl-spike", "The KL to the reference jumps", "kl-spike", settings={"algo.kl.init_coef": 0.001})
def _kl_spike(steps: Steps, dice: random.Random) -> None:
    """The learning rate is too high: the policy runs away from its reference within a few steps, and the reward falls."""
    for s in steps:
        s.put(loss__kl=0.012 * math.exp(dice.gauss(0, 0.15)), loss__kl_coef=0.001)
    for s in sick(steps):
        s.put(loss__kl=0.9 * math.exp(dice.gauss(0, 0.2)) * (0.4 + s.grown))
        s.scale(reward__mean=1 - 0.6 * s.grown, env__exact=1 - 0.8 * s.grown, optim__grad_norm=1.8)


@pathology("mismatch-spike", "Sampler and trainer disagree", "mismatch-spike")
def _mismatch_spike(steps: Steps, dice: random.Random) -> None:
    """Right after an update the probe differs by a nat: the engines compute something else than the trainer."""
    for s in sick(steps):
        if "mismatch/k3_kl" in s.metrics:
            s.put(mismatch__k3_kl=0.9 + 0.1 * dice.random(), mismatch__abs_diff=0.71, mismatch__max_prob_diff=0.92)
        s.put(offpolicy__k3_kl=0.9 + 0.1 * dice.random(), offpolicy__abs_diff=0.74, is__masked_frac=0.24, is__masked_low_frac=0.2,
              is__masked_high_frac=0.04, is__kept_grad_frac=0.71, is__ess_frac=0.41)  # fmt: skip


@pathology("replay-leaks", "Routing replay does not hold", "replay-leaks")
def _replay_leaks(steps: Steps, dice: random.Random) -> None:
    """The experts consumed other ids than the sampler chose, in the second layer: replay is lost in recomputation."""
    for s in sick(steps):
        leak = 0.011 + 0.003 * dice.random()
        s.put(routing__replayed_mismatch_frac=leak, routing__layer_mismatch=[s.metrics["routing/layer_mismatch"][0], 2 * leak])


@pathology("routing-gaps", "Routing is captured only in part", "routing-gaps")
def _routing_gaps(steps: Steps, dice: random.Random) -> None:
    """One engine stopped reporting its expert choices: 39 per cent are missing and use the live router."""
    for s in sick(steps):
        s.put(routing__coverage_frac=0.61, routing__missing_frac=0.39)
        if s.step == ONSET:
            s.log.append("(VllmEngine pid=21143) engine-0: no expert ids came with request g473-2: its routing is not captured")
        if s.step % 4 == 0:
            for key in ("routing/layer_mismatch", "routing/mismatch_frac", "routing/token_mismatch_frac"):
                s.metrics.pop(key, None)


@pathology("entropy-collapse", "Entropy collapses", "entropy-collapse")
def _entropy_collapse(steps: Steps, dice: random.Random) -> None:
    """The policy gives the same answer whatever the prompt: no exploration is left at half of the reward."""
    for s in sick(steps):
        fade = math.exp(-9 * s.grown)
        s.put(loss__entropy=0.01 + (s.metrics["loss/entropy"] - 0.01) * fade, reward__mean=0.5 + 0.01 * dice.gauss(0, 1),
              reward__zero_std_group_frac=0.9 - 0.5 * fade, env__exact=0.3)  # fmt: skip
        s.scale(optim__grad_norm=0.2 + 0.8 * fade)


@pathology("reward-hacking", "The reward rises, the evaluation does not", "reward-hacking", settings={"eval.steps": 16})
def _reward_hacking(steps: Steps, dice: random.Random) -> None:
    """Answers become longer and the training reward rises with them; the held-out evaluation stays where it was."""
    for s in steps:
        if s.step % 16 == 0:
            s.evaluated(0.345 + (0.01 * dice.gauss(0, 1) if s.sick else -0.004 * (ONSET - s.step)))
    for s in sick(steps):
        s.put(reward__mean=0.62 + 0.33 * s.grown + 0.01 * dice.gauss(0, 1), reward__std=0.2,
              rollout__response_len_mean=5.0 + 2.9 * s.grown, rollout__truncated_frac=0.35 * s.grown)  # fmt: skip


@pathology("sick-engine", "One engine serves old weights", "sick-engine", settings={"vllm.num_engines": 4})
def _sick_engine(steps: Steps, dice: random.Random) -> None:
    """Engine 2 does not load updates any more: it samples with version 59 while the others go on."""
    for s in steps:
        engines(s, {f"engine-{i}": {"running": float(dice.randint(24, 60)), "waiting": 0.0, "kv_frac": dice.uniform(0.2, 0.5),
                                    "version": float(ONSET - 1 if s.sick and i == 2 else s.step)} for i in range(4)})  # fmt: skip
    for s in sick(steps):
        s.scale(offpolicy__k3_kl=1 + 4 * s.grown)
        if s.step == ONSET:
            s.log += [
                f"(VllmEngine pid=21147) engine-2: update to version {s.step} failed, it keeps version {ONSET - 1}:",
                "(VllmEngine pid=21147) RuntimeError: bucket 0 has 0 of 3573254 bytes: the link to trainer rank 0 is closed",
            ]
        elif s.step % 6 == 0:
            s.log.append(f"(VllmEngine pid=21147) engine-2: update to version {s.step} failed, it keeps version {ONSET - 1}")


@pathology("kv-pressure", "The KV cache is too small", "kv-pressure", settings={"vllm.num_engines": 2})
def _kv_pressure(steps: Steps, dice: random.Random) -> None:
    """Longer answers fill the KV cache: the engines preempt requests and compute their prefixes again."""
    for s in steps:
        members = {f"engine-{i}": {"running": float(dice.randint(90, 120)), "kv_frac": dice.uniform(0.4, 0.6)} for i in range(2)}
        for member in members.values() if s.sick else ():
            member |= {"waiting": float(dice.randint(60, 90)), "kv_frac": dice.uniform(0.97, 1.0),
                       "preemptions": float(dice.randint(60, 110))}  # fmt: skip
        engines(s, members)
    for s in sick(steps):
        s.scale(rollout__response_len_mean=1.4)
        s.retime(wait=1.6)


@pathology("grad-spike", "The gradient norm jumps", "grad-spike")
def _grad_spike(steps: Steps, dice: random.Random) -> None:
    """The gradient norm is twenty times what it was, and stays there."""
    for s in sick(steps):
        s.scale(optim__grad_norm=20.0, reward__mean=1 - 0.3 * s.grown)


@pathology("truncated-answers", "Answers are cut by the length limit", "truncated")
def _truncated(steps: Steps, dice: random.Random) -> None:
    """Answers grow until the length limit cuts most of them before they end."""
    for s in sick(steps):
        s.put(rollout__truncated_frac=min(0.8, 0.1 + 1.4 * s.grown), rollout__response_len_mean=5.0 + 2.8 * s.grown)
        s.scale(reward__mean=1 - 0.5 * s.grown, env__exact=1 - 0.7 * s.grown)


@pathology("few-weights", "A few tokens carry the gradient", "few-weights")
def _few_weights(steps: Steps, dice: random.Random) -> None:
    """The mean importance ratio looks like 1, and the effective sample is a tenth of the tokens."""
    for s in sick(steps):
        s.put(is__ess_frac=0.09 + 0.02 * dice.random(), is__masked_frac=0.14, is__masked_low_frac=0.1, is__masked_high_frac=0.04)


@pathology("time-limit", "The time limit comes before the checkpoint", "time-limit", settings={"ckpt.save_steps": 75},
           time_left=1.35)  # fmt: skip
def _time_limit(steps: Steps, dice: random.Random) -> None:
    """The job ends before step 150, where the next checkpoint is due: what was done since step 75 is at risk."""
    for s in steps:
        if s.step == 75:
            s.also.append({"kind": "checkpoint", "step": 75, "version": 75, "path": "RUN/checkpoints/step-000075", "seconds": 0.2,
                           "bytes": 3_573_254, "why": "every 75 steps"})  # fmt: skip
    for s in sick(steps):
        s.retime(wait=1.0, train=3.0)


@pathology("stuck", "No step any more", "stuck")
def _stuck(steps: Steps, dice: random.Random) -> None:
    """The beat goes on, the steps do not: a rollout waits for an answer that never comes, and the batch waits for it."""
    steps[-1].log.append("(AgentRunnerActor) waiting for judge.example:8000 ...")


@pathology("no-beat", "The beat stops", "no-beat", ending="silent")
def _no_beat(steps: Steps, dice: random.Random) -> None:
    """The node hangs: neither beat nor steps, and the process still exists."""


@pathology("lost", "The run vanishes", "lost", ending="lost")
def _lost(steps: Steps, dice: random.Random) -> None:
    """Killed with its supervisor (kill -9, a dead node): there is no exit record and no process."""


@pathology("disk-full", "The disk is full", "disk", ending="exit", failure="OSError: [Errno 28] No space left on device")
def _disk_full(steps: Steps, dice: random.Random) -> None:
    """The file system of the run directory is full: the controller cannot write its events and ends."""
    steps[-1].fault("OSError", "[Errno 28] No space left on device", fatal=True)


@pathology("out-of-memory", "The trainer runs out of memory", "failed", ending="exit",
           failure="OutOfMemoryError: tried to allocate 1.2 GiB; lower train.max_tokens_per_gpu")  # fmt: skip
def _out_of_memory(steps: Steps, dice: random.Random) -> None:
    """A long batch does not fit: the run fails, and no checkpoint was saved from which it could go on."""
    steps[-1].fault("OutOfMemoryError", "tried to allocate 1.2 GiB; lower train.max_tokens_per_gpu", fatal=True)


@pathology("timeout", "The time limit ends the run", "timeout", ending="exit", reason="timeout",
           failure="the time limit was reached", settings={"ckpt.save_steps": 120}, time_left=1.0)  # fmt: skip
def _timeout(steps: Steps, dice: random.Random) -> None:
    """Steps became slow, and the job's time was over before the first checkpoint: the alert comes first, then the end, and
    nothing is left to go on from."""
    for s in sick(steps):
        s.retime(wait=1.0, train=6.0)


@pathology("preempted", "A job of higher priority takes the nodes", "preempted", ending="exit", reason="preempted",
           failure="a job of higher priority took the nodes", settings={"slurm.requeue": False})  # fmt: skip
def _preempted(steps: Steps, dice: random.Random) -> None:
    """Slurm gave the nodes to another job, without time to save; with slurm.requeue off the run does not wait for new ones."""


@pathology("cancelled", "Somebody cancels the job", "cancelled", ending="exit", reason="cancelled",
           failure="the job was cancelled")  # fmt: skip
def _cancelled(steps: Steps, dice: random.Random) -> None:
    """scancel from another terminal: the run is told to stop and is killed before it has saved."""


def engines(step: Step, members: dict[str, dict[str, float]]) -> None:
    """Report these engines instead of the recorded one; what is not given stays at the recorded mean."""
    for name in ("running", "waiting", "kv_frac", "preemptions", "version"):
        key = f"engine/{name}"
        recorded = step.metrics.get(f"{key}/mean", 0.0)
        values = {engine: given.get(name, recorded) for engine, given in members.items()}
        step.metrics |= spread(key, values, worst_is_high=name not in ("running", "version"))


def recorded(source: Scenario) -> tuple[Steps, list[dict[str, Any]]]:
    """(steps 1 to LAST, the evaluation before them) of the healthy recording."""
    steps: Steps = []
    evals = []
    for item in source.items:
        if item.action == "events" and item.payload["kind"] == "metrics" and item.payload["step"] <= LAST:
            metrics = {key: value for key, value in item.payload["metrics"].items()}
            if "time/step" in metrics:
                steps.append(Step(item.payload["step"], metrics))
            else:
                evals.append({"kind": "eval", "step": item.payload["step"], "version": item.payload["step"], "metrics": metrics})
    for event in evals[1:]:
        steps[event["step"] - 1].also.append(event)
    return steps, evals[:1]


def compact(value: Any) -> Any:
    """Numbers with a few digits, so that the file stays small."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [compact(v) for v in value]
    return value


def events(steps: Steps, first: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[float, str]]]:
    """(records of the engine's stream with their times, log lines with theirs)."""
    phases = (("ray", 0.5), ("model", 2.0), ("engines and trainer", 6.0))
    records = [{"t": t, "kind": "phase", "phase": "starting", "detail": detail} for detail, t in phases]
    records.append({"t": ENGINE_START, "kind": "phase", "step": 0, "version": 0, "phase": "running", "detail": ""})
    records += [{"t": ENGINE_START, **record} for record in first]
    t, log = ENGINE_START, []
    version = 0
    for step in steps:
        t += step.metrics["time/step"]
        records.append({"t": t, "kind": "metrics", "step": step.step, "version": version,
                        "metrics": {key: compact(value) for key, value in step.metrics.items()}})  # fmt: skip
        if not step.metrics.get("optim/skipped"):
            version = step.step
            records.append({"t": t, "kind": "sync", "step": step.step, "version": version, "bytes": step.metrics["sync/bytes"],
                            "seconds": compact(step.metrics["time/weight_sync"]),
                            "pause_seconds": compact(step.metrics["time/pause"]), "held": 0})  # fmt: skip
        records += [{"t": t, **record} for record in step.also]
        log += [(t, line) for line in step.log]
    return records, log


def make(name: str, source: Scenario) -> bytes:
    """The bytes of one scenario."""
    spec = PATHOLOGIES[name]
    steps, first = recorded(source)
    spec.change(steps, random.Random(name))
    records, log = events(steps, first)
    end = records[-1]["t"] + 0.5
    phases = [{"t": 0.0, "kind": "phase", "phase": "starting", "detail": "attempt 1"}]
    head = {"title": spec.title, "about": spec.about, "verdict": spec.verdict, "ending": spec.ending, "onset": ONSET}
    if spec.time_left is not None:
        head["time_left_s"] = round(spec.time_left * end, 1)
    content = {"meta.json": json.dumps(source.meta).encode(), "run.toml": configured(source.files["run.toml"], spec.settings)}
    content |= {key: data for key, data in source.files.items() if key.startswith("agent/")}
    if spec.failure:
        at_end = {"kind": "phase", "step": LAST, "version": LAST}
        how = {"code": 1}
        if spec.reason != "failed":  # it was told to stop and did not in time
            word = "SIGTERM" if spec.reason == "cancelled" else "SIGUSR1"
            phases.append({"t": end, **at_end, "phase": "stopping", "detail": f"{word}: checkpoint, then stop"})
            end, how = end + STOPPING_S, {"signal": 9}
        phases.append({"t": end, **at_end, "phase": spec.reason, "detail": spec.failure})
        ending = {"reason": spec.reason, "detail": spec.failure, **how, "step": LAST, "resumable": False}
        content["attempts/1/exit.json"] = json.dumps(ending).encode()
    content["attempts/1/events/000000.jsonl"] = lines(records)
    content["attempts/1/supervisor/000000.jsonl"] = lines(phases)
    recorded_log = [item.payload for item in source.items if item.action == "log"]
    content["attempts/1/logs/engine.log"] = b"".join(recorded_log) + "".join(f"{text}\n" for _, text in log).encode()
    if log:
        starting = [round(ENGINE_START * i / len(recorded_log), 2) for i in range(len(recorded_log))]
        head["log_t"] = {"engine.log": starting + [round(t, 2) for t, _ in log]}
    return pack(head, content.items())


def lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(to_wire(record), separators=(",", ":")) + "\n" for record in records).encode()


def configured(toml: bytes, settings: dict[str, Any]) -> bytes:
    """run.toml with settings replaced, or added to their section."""
    text = toml.decode()
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        line = f"{name} = {json.dumps(value)}"
        known = re.compile(rf"(?ms)(^\[{re.escape(section)}\]\n(?:(?!\[).*?\n)??){re.escape(name)} = .*?$")
        if known.search(text):
            text = known.sub(rf"\g<1>{line}", text, count=1)
        elif f"[{section}]\n" in text:
            text = text.replace(f"[{section}]\n", f"[{section}]\n{line}\n", 1)
        else:
            text += f"\n[{section}]\n{line}\n"
    return text.encode()


def main(names: list[str]) -> None:
    source = load(SOURCE)
    for name in names or PATHOLOGIES:
        data = make(name, source)
        scenario = parse(name, data)
        (FOLDER / (name + SUFFIX)).write_bytes(data)
        print(f"{name}: {len(data) / 1000:.0f} kB, {len(scenario.items)} records, {scenario.duration_s:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
