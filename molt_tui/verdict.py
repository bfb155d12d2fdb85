"""What a run is doing, in one line of words: every verdict and alert there is, as data. Pure; no clock, no I/O.

A rule is a function from `Facts` to the sentence with its numbers (None: it does not apply), and what stands above it: its
level, what to press or change, what healthy looks like. Rules are tried in the order of this file, most urgent first, so the
first verdict is the headline. docs/what-to-press.md is made from here (tests/make_what_to_press.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from molt_tui.bottleneck import STEPS
from molt_tui.facts import EVAL_ENDS, USUAL, Facts, percent, short, span

Level = Literal["good", "info", "warning", "critical"]
See = Callable[[Facts], str | None]

ACTIVE = frozenset({"queued", "starting", "running", "paused", "stopping"})
NO_BEAT_WARN_S, NO_BEAT_BAD_S = 20.0, 60.0
STARVING = 0.85
ALL_MASKED, MUCH_MASKED, ESS_LOW = 0.999, 0.30, 0.20
STUCK_STEPS, STUCK_S, FAULT_STEPS = 20.0, 120.0, 20


@dataclass(frozen=True)
class Verdict:
    rule: str
    level: Level
    text: str
    action: str = ""
    healthy: str = ""

    @property
    def alarming(self) -> bool:
        """Whether a person should look at it."""
        return self.level in ("warning", "critical")


@dataclass(frozen=True)
class Timeline:
    """When alerts applied: for each rule one level per step in `steps`, None where it did not apply."""

    steps: tuple[int, ...]
    levels: Mapping[str, tuple[Level | None, ...]]


@dataclass(frozen=True)
class Rule:
    """`about` one line for the docs; `lasts`: still worth saying of a run that has ended."""

    name: str
    level: Level
    see: See
    action: str | Callable[[Facts], str]
    healthy: str
    about: str
    lasts: bool


RULES: list[Rule] = []


def rule(name: str, level: Level, do: str | Callable[[Facts], str], healthy: str, lasts: bool = False) -> Callable[[See], See]:
    """Adds a rule; its docstring is what the docs say about it."""

    def add(see: See) -> See:
        RULES.append(Rule(name, level, see, do, healthy, " ".join((see.__doc__ or "").split()), lasts))
        return see

    return add


def judge(facts: Facts) -> list[Verdict]:
    """Every rule that applies, most urgent first. Of a run that has ended: how it ended, and what its last steps still say."""
    ended = facts.state not in ACTIVE
    found = []
    for each in RULES:
        text = each.see(facts) if not (ended and found and not each.lasts) else None
        if text is not None:
            action = each.action if isinstance(each.action, str) else each.action(facts)
            found.append(Verdict(each.name, each.level, text, action, each.healthy))
    return found


def headline(facts: Facts) -> Verdict:
    """The first verdict; a state without any rule is named as it is."""
    found = judge(facts)
    return found[0] if found else Verdict("unknown", "info", facts.state or "unknown")


# How a run ended


def _go_on(facts: Facts) -> str:
    if facts.last_checkpoint is None:
        return "no checkpoint was saved: r launches it anew"
    return f"p goes on from the checkpoint of step {facts.last_checkpoint}"


def _is(state: str, level: Level, words: str, do: str | Callable[[Facts], str], healthy: str, about: str) -> None:
    """Adds the rule that names a state: waiting ones with their detail in brackets, final ones with step and reason."""

    def see(facts: Facts) -> str | None:
        if facts.state != state:
            return None
        if state in ACTIVE:
            return words + (f" ({facts.detail})" if facts.detail else "")
        return f"{words}{facts.at_step()}" + (f": {facts.detail}" if facts.detail else "")

    see.__doc__ = about
    rule(state, level, do, healthy)(see)


@rule("completed", "good", "press y to copy the id, l to read the log", "every step done")
def _completed(facts: Facts) -> str | None:
    """Every planned step is done."""
    if facts.state != "completed":
        return None
    of = f" of {facts.max_steps}" if facts.max_steps else ""
    return "completed" if facts.step is None else f"completed: {facts.step}{of} steps"


@rule(
    "disk",
    "critical",
    lambda f: "free space where the run directory lies" if f.state in ACTIVE else f"free space on its disk; {_go_on(f)}",
    "every write succeeds",
)
def _disk(facts: Facts) -> str | None:
    """The file system refused to write: disk full, over quota, read-only."""
    said = None if facts.state == "completed" else facts.refused_write()
    return f"the disk refuses to write{facts.at_step()}: {said}" if said else None


@rule("failed", "critical", lambda f: f"press l for the log; {_go_on(f)}", "a run ends completed")
def _failed(facts: Facts) -> str | None:
    """The run ended with an error, which the line names."""
    if facts.state != "failed" or facts.refused_write():
        return None
    return f"failed{facts.at_step()}" + (f": {facts.detail}" if facts.detail else "")


ENDS = "a run ends completed"
_is("lost", "critical", "lost", lambda f: f"nothing runs any more; {_go_on(f)}", "the beat counter moves every second",
    "The beat stands still and no process or job of the run exists: it was killed without a word.")  # fmt: skip
_is("timeout", "warning", "out of time", _go_on, ENDS, "The job's time limit ended the run.")
_is("preempted", "warning", "preempted", _go_on, ENDS, "A job of higher priority took the nodes.")
_is("cancelled", "info", "stopped", _go_on, ENDS, "Somebody stopped it.")


# Whether it lives


@rule("no-beat", "critical", "press l for the log; x stops what is left of it", "the beat counter moves every second")
def _no_beat(facts: Facts) -> str | None:
    """The supervisor's beat has not moved for a minute: the node hangs, or the file system does."""
    age = facts.beat_age_s
    live = facts.state in ACTIVE - {"queued"} and age is not None and age >= NO_BEAT_BAD_S
    return f"no heartbeat for {age:.0f} s{facts.at_step()}" if live else None


@rule("late-beat", "warning", "wait a moment or press l for the log", "the beat counter moves every second")
def _late_beat(facts: Facts) -> str | None:
    """The beat is late: often a slow file system."""
    age = facts.beat_age_s
    late = facts.state in ACTIVE - {"queued"} and age is not None and NO_BEAT_WARN_S <= age < NO_BEAT_BAD_S
    return f"no heartbeat for {age:.0f} s" if late else None


_is("queued", "info", "waiting in the queue", "", "running", "The job waits for its nodes.")
_is(
    "starting",
    "info",
    "starting",
    "engines and trainer come up; press l for the log",
    "running",
    "Ray, engines and trainer come up.",
)
_is("paused", "info", "paused", "press p to go on", "running", "Somebody paused it.")
_is("stopping", "info", "stopping", "it writes a checkpoint, then ends", "ends within a minute", "It was asked to stop.")


# Nothing is learned any more


@rule(
    "not-finite",
    "critical",
    lambda f: (
        ("press x to stop it; relaunch" if f.state in ACTIVE else "r launches it anew")
        + " with a lower actor.adam.lr or actor.max_norm"
    ),
    "every metric is finite",
    lasts=True,
)
def _not_finite(facts: Facts) -> str | None:
    """A metric is NaN or infinite. The loss side is named first, since the rest follows from it."""
    bad = [k for k, v in facts.metrics.items() if isinstance(v, float) and not math.isfinite(v)]
    if not bad:
        return None
    first = min(bad, key=lambda k: (not k.startswith(("loss/", "optim/")), k))
    word = "NaN" if math.isnan(facts.metrics[first]) else "infinite"
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return f"{first} is {word}{facts.since(first, lambda v: not math.isfinite(v))}{more}"


@rule(
    "all-masked",
    "critical",
    "widen algo.advantage.is_correction_threshold; a MoE: train.routing_replay",
    "a few per cent masked",
    lasts=True,
)
def _all_masked(facts: Facts) -> str | None:
    """The correction masks every unit, or all of the gradient: steps are taken and nothing is learned."""
    for key, unit in (("is/masked_frac", "token"), ("is/masked_seq_frac", "sequence")):
        value = facts.number(key)
        if value is not None and value >= ALL_MASKED:
            return f"every {unit} is masked{facts.since(key, lambda v: v >= ALL_MASKED)}: no gradient"
    kept = facts.number("is/kept_grad_frac")
    if kept is not None and kept <= 1 - ALL_MASKED:
        return f"the correction removes the whole gradient{facts.since('is/kept_grad_frac', lambda v: v <= 1 - ALL_MASKED)}"
    return None


@rule(
    "stuck", "critical", "press l for the log: who spoke last? x stops it, p then goes on", "a step every few seconds to minutes"
)
def _stuck(facts: Facts) -> str | None:
    """The beat moves, steps do not: an environment, a collective or a scheduler hangs."""
    age, usual = facts.step_age_s, facts.usual("time/step")
    if facts.state != "running" or age is None or age < max(STUCK_S, STUCK_STEPS * (usual or 0.0)):
        return None
    return f"stuck: no step for {span(age)}{facts.at_step()}" + (f"; a step took {usual:.1f} s" if usual else "")


@rule(
    "failing-rollouts",
    "critical",
    "press l for the log: it names the error of the environment",
    "no rollout fails for good",
    lasts=True,
)
def _failing_rollouts(facts: Facts) -> str | None:
    """Rollouts fail for good; above rollout.max_failure_rate the run ends itself."""
    failed, size = facts.usual("rollout/failed"), facts.setting("rollout.batch_size")
    samples = facts.setting("rollout.n_samples_per_prompt")
    if failed is None or not size or not samples:
        return None
    rate, limit = failed / (failed + size * samples), facts.setting("rollout.max_failure_rate")
    if rate < 0.05:
        return None
    return f"{percent(rate)} of rollouts fail" + (f"; the run ends above {percent(limit)}" if limit is not None else "")


# It learns, but something is wrong


@rule("skipped", "warning", "lower train.max_staleness or check the environment's rewards", "every step updates", lasts=True)
def _skipped(facts: Facts) -> str | None:
    """A step without an update: no token to train, or a gradient that is not finite."""
    norm = facts.metrics.get("optim/grad_norm")
    if not facts.number("optim/skipped") or (isinstance(norm, float) and not math.isfinite(norm)):  # not-finite says that
        return None
    return f"nothing to train: steps skipped{facts.since('optim/skipped', lambda v: v > 0)}"


@rule(
    "same-reward",
    "warning",
    "too easy or too hard: change the prompts or the reward, or filter groups",
    "under half of the groups",
    lasts=True,
)
def _same_reward(facts: Facts) -> str | None:
    """Nearly every group's rollouts got equal rewards: no advantage, no gradient."""
    share = facts.usual("reward/zero_std_group_frac")
    if share is None or share < 0.95:
        return None
    return f"{percent(share)} of groups have equal rewards: almost no gradient"


@rule("missing-rewards", "warning", "press l for the log: the reward function returned no number", "0")
def _missing_rewards(facts: Facts) -> str | None:
    """Rollouts without a finite reward; they are kept out of their group's statistics."""
    count = facts.number("reward/missing")
    return f"{count:.0f} rollouts without a finite reward{facts.at_step()}" if count else None


@rule("replay-leaks", "warning", "log-probs are not comparable; report it with this run's id", "exactly 0", lasts=True)
def _replay_leaks(facts: Facts) -> str | None:
    """Routing replay does not hold: experts consumed other ids than the sampler chose."""
    share = facts.number("routing/replayed_mismatch_frac")
    return f"routing replay misses {percent(share)} of expert choices" if share else None


@rule(
    "routing-gaps",
    "warning",
    "press l: does every engine capture routing? The rest uses the live router",
    "above 99 % covered",
    lasts=True,
)
def _routing_gaps(facts: Facts) -> str | None:
    """Replay is on, and the sampler reported only a part of its expert choices."""
    share = facts.number("routing/coverage_frac")
    if share is None or share >= 0.95 or facts.config.get("train.routing_replay") is False:
        return None
    return f"only {percent(share)} of expert choices were captured: the rest is not replayed"


@rule(
    "mismatch-spike",
    "warning",
    "compare vllm.dtype with fsdp.param_dtype; a MoE: train.routing_replay",
    "k3 of the probe under 0.01 nats",
)
def _mismatch_spike(facts: Facts) -> str | None:
    """Sampler and trainer disagree on the probe right after an update: numerics or stale weights, not staleness."""
    found = facts.jump("mismatch/k3_kl", 10.0, 0.05, recent=2)
    newest = facts.last("mismatch/k3_kl", 3)
    if found:
        return f"probe k3 jumped to {short(found[0])} nats, usual {short(found[1])}"
    return f"probe k3 is {short(newest[-1])} nats: sampler and trainer disagree" if newest and min(newest) > 0.1 else None


@rule("grad-spike", "warning", "lower actor.adam.lr or actor.max_norm", "within a few times its usual value")
def _grad_spike(facts: Facts) -> str | None:
    """The gradient norm stays far above what it was."""
    found = facts.jump("optim/grad_norm", 8.0, 0.0)
    return f"gradient norm {short(found[0])}, usual {short(found[1])}" if found else None


@rule("kl-spike", "warning", "lower actor.adam.lr, or raise algo.kl.init_coef", "within a few times its usual value")
def _kl_spike(facts: Facts) -> str | None:
    """The policy leaves its reference, or the sampler's policy, faster than before."""
    for key, words, factor in (("loss/kl", "KL to the reference", 5.0), ("offpolicy/k3_kl", "off-policy k3", 8.0)):
        found = facts.jump(key, factor, 0.05)
        if found:
            return f"{words} jumped to {short(found[0])} nats, usual {short(found[1])}"
    return None


@rule(
    "entropy-collapse",
    "warning",
    "raise actor.entropy_coef or rollout.temperature, lower actor.adam.lr",
    "falls only while the reward rises",
)
def _entropy_collapse(facts: Facts) -> str | None:
    """The policy stopped exploring before the task is solved."""
    entropy, reward, best = facts.last("loss/entropy", 5), facts.usual("reward/mean"), facts.number("reward/max")
    if not entropy or max(entropy) >= 0.05 or (reward is not None and best is not None and reward >= 0.8 * best):
        return None
    at = "" if reward is None else f" at reward {short(reward)}"
    return f"entropy {short(entropy[-1])} nats{at}: no exploration left"


@rule(
    "reward-hacking",
    "warning",
    "press t and read the rollouts of highest reward: it may pay for length",
    "the evaluation rises with the reward",
    lasts=True,
)
def _reward_hacking(facts: Facts) -> str | None:
    """Training reward and length rise, the held-out evaluation does not."""
    for key in (k for k in facts.history if k.startswith("eval/") and k.endswith(EVAL_ENDS)):
        scores = facts.samples(key)[-3:]
        if len(scores) < 3:
            continue
        (first, before), (last, after) = scores[0], scores[-1]
        reward, length = facts.change("reward/mean", first, last), facts.change("rollout/response_len_mean", first, last)
        if reward and length and reward[1] > reward[0] + 0.1 * abs(reward[0]) and length[1] > 1.25 * length[0] and (
                after <= before + 0.02):  # fmt: skip
            return (f"reward {short(reward[0])} to {short(reward[1])} and length {short(length[0])} to {short(length[1])},"
                    f" evaluation {short(before)} to {short(after)}: reward hacking?")  # fmt: skip
    return None


@rule(
    "sick-engine",
    "warning",
    "press l and look for that engine; x and p start the engines anew",
    "every engine serves the newest version and has work",
)
def _sick_engine(facts: Facts) -> str | None:
    """One engine serves old weights, was restarted, or has no work while the others do; a mean hides it."""
    low, high = facts.number("engine/version/min"), facts.number("engine/version/max")
    if low is not None and high is not None and high - low >= 2:
        return f"{facts.metrics.get('engine/version/worst', 'an engine')} serves v{low:.0f}, the others v{high:.0f}"
    restarts = facts.number("engine/restarts/max")
    if restarts:
        return f"{facts.metrics.get('engine/restarts/worst', 'an engine')} was restarted {restarts:.0f} times"
    idle, mean = facts.last("engine/running/min", 6), facts.last("engine/running/mean", 6)
    if idle and mean and max(idle) == 0 and min(mean) >= 4:
        return f"{facts.metrics.get('engine/running/worst', 'an engine')} has had no request for 6 steps, mean {mean[-1]:.0f}"
    return None


@rule("kv-pressure", "warning", "lower vllm.max_num_seqs or raise vllm.gpu_memory_utilization", "no preemptions")
def _kv_pressure(facts: Facts) -> str | None:
    """Engines preempt requests: the KV cache is too small for what runs."""
    last = facts.last("engine/preemptions/mean", USUAL)
    if not last or min(last) < 1:
        return None
    worst = facts.metrics.get("engine/preemptions/worst")
    return f"KV cache too small: {sum(last) / len(last):.0f} preemptions a step" + (f", worst {worst}" if worst else "")


@rule(
    "staleness-bound",
    "warning",
    "lower train.max_staleness or rollout.max_new_tokens, or add trainer ranks",
    "mean under the bound, under 1 % of tokens over age",
)
def _staleness_bound(facts: Facts) -> str | None:
    """Trained tokens are as old as allowed, or over age and masked: sampled for nothing."""
    bound, mean = facts.setting("train.max_staleness"), facts.usual("staleness/mean")
    over, counts = facts.usual("staleness/masked_tokens"), facts.metrics.get("staleness/hist")
    trained = sum(c for c in counts if isinstance(c, (int, float))) if isinstance(counts, list) else 0
    share = over / (over + trained) if over and trained else 0.0
    if bound is None or mean is None or not (share >= 0.02 or (bound >= 2 and mean >= 0.9 * bound)):
        return None
    return f"staleness at its bound: mean {short(mean)} of {bound:.0f} versions, {percent(share)} of tokens over age"


@rule(
    "much-masked", "warning", "widen algo.advantage.is_correction_threshold or lower train.max_staleness", "a few per cent masked"
)
def _much_masked(facts: Facts) -> str | None:
    """The correction removes a large share of what was sampled."""
    for key, unit in (("is/masked_frac", "tokens"), ("is/masked_seq_frac", "sequences")):
        share = facts.usual(key)
        if share is not None and MUCH_MASKED <= share < ALL_MASKED:
            return f"{percent(share)} of {unit} are masked"
    return None


@rule("few-weights", "warning", "narrow algo.advantage.is_correction_threshold; lower train.max_staleness", "above 50 %")
def _few_weights(facts: Facts) -> str | None:
    """Few importance weights carry the gradient, whatever the mean ratio says."""
    share = facts.usual("is/ess_frac")
    if share is None or share >= ESS_LOW:
        return None
    return f"effective sample size {percent(share)}: few tokens carry the gradient"


@rule("truncated", "warning", "raise rollout.max_new_tokens, or penalise length", "under 10 %")
def _truncated(facts: Facts) -> str | None:
    """Most answers are cut by a length or turn limit before they end."""
    share = facts.usual("rollout/truncated_frac")
    return f"{percent(share)} of rollouts are cut by a limit" if share is not None and share >= 0.5 else None


@rule(
    "time-limit",
    "warning",
    "press c to save one now; next time lower ckpt.save_steps or more slurm.time",
    "the next checkpoint comes before the limit",
)
def _time_limit(facts: Facts) -> str | None:
    """The job's time ends before the next checkpoint is due: the steps since the last one are at risk."""
    left, pace, every = facts.time_left_s, facts.usual("time/step"), facts.setting("ckpt.save_steps")
    if facts.state != "running" or left is None or pace is None or facts.step is None:
        return None
    due = (facts.step // int(every) + 1) * int(every) if every and every > 0 else facts.max_steps
    if due is None or (due - facts.step) * pace <= left:
        return None
    lost = facts.step - (facts.last_checkpoint or 0)
    return f"time limit in {span(left)}, next checkpoint at step {due} in {span((due - facts.step) * pace)}: {lost} steps at risk"


@rule("fault", "warning", "press l for the log", "no fault")
def _fault(facts: Facts) -> str | None:
    """Something failed in the last steps and the run went on."""
    recent = [f for f in facts.faults if facts.step is None or f.step is None or f.step > facts.step - FAULT_STEPS]
    if not recent or facts.refused_write() or facts.state not in ACTIVE:
        return None
    last = recent[-1]
    return f"{last.what}{'' if last.step is None else f' at step {last.step}'}" + (f": {last.detail}" if last.detail else "")


@rule("starving", "warning", "look for a sick engine; add some (vllm.num_engines)", "trainer idle under 25 %")
def _starving(facts: Facts) -> str | None:
    """The queue is empty and the trainer waits nearly all the time."""
    trainer, depth = facts.usual("time/trainer_idle_frac"), facts.last("queue/depth", USUAL)
    if trainer is None or trainer < STARVING or not depth or max(depth) > 0:
        return None
    return f"starving: queue empty for {USUAL} steps, trainer idle {percent(trainer)}"


# Where the time goes


@rule("alternating", "info", "raise train.max_staleness to let both sides work at once", "both idle shares under 25 %")
def _alternating(facts: Facts) -> str | None:
    """Both sides wait for each other in turn. This and the next two look at the last 16 steps, and a side that was found to wait
    does so until it waits clearly less."""
    found = facts.waits("alternating")
    return (
        found and f"both sides wait in turn: trainer idle {percent(found.trainer)}, engines idle {percent(found.engines or 0.0)}"
    )


@rule(
    "generation-bound",
    "info",
    lambda f: (
        "faster with more cores, shorter answers or a higher train.max_staleness"
        if f.only_cores()
        else "faster with more engines (vllm.num_engines) or a higher train.max_staleness"
    ),
    "trainer idle under 25 %",
)
def _generation_bound(facts: Facts) -> str | None:
    """The engines are the bottleneck."""
    found = facts.waits("generation-bound")
    return found and f"generation-bound: trainer idle {percent(found.trainer)}{facts.queue_words()}"


@rule(
    "trainer-bound",
    "info",
    lambda f: (
        "nothing is wrong; faster with more cores, shorter answers or a smaller model"
        if f.only_cores()
        else "faster with more trainer ranks (actor.num_gpus_per_node)"
    ),
    "engines idle under 25 %",
)
def _trainer_bound(facts: Facts) -> str | None:
    """The trainer is the bottleneck."""
    found = facts.waits("trainer-bound")
    return found and f"trainer-bound: engines idle {percent(found.engines or 0.0)}{facts.queue_words()}"


@rule("sync-bound", "info", "train more per step (rollout.batch_size)", "under 25 % of the step")
def _sync_bound(facts: Facts) -> str | None:
    """Publishing the weights takes a large share of the step."""
    sync, step = facts.usual("time/weight_sync", STEPS), facts.usual("time/step", STEPS)
    if not sync or not step or sync <= 0.25 * step:
        return None
    return f"sync-bound: weight publication takes {percent(sync / step)} of the step"


@rule("balanced", "good", "nothing to do", "both idle shares under 25 %")
def _balanced(facts: Facts) -> str | None:
    """Neither side waits much."""
    found = facts.waits("balanced")
    if found is None:
        return None
    other = "" if found.engines is None else f", engines idle {100 * found.engines:.0f} %"
    return f"balanced: trainer idle {100 * found.trainer:.0f} %{other}"


@rule("running", "info", "", "a step every few seconds to minutes")
def _running(facts: Facts) -> str | None:
    """It runs, and has not said much yet."""
    if facts.state != "running" or facts.bottleneck() is not None:
        return None
    return "running" if facts.metrics and facts.step is not None else "running: no step finished yet"
