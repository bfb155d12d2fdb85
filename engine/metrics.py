"""Every metric once: name, unit, meaning, group, better-is. The names are the contract between engine and cockpit."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """`per_name` marks a family (`eval/<name>/...`): the name is a prefix pattern with one free part.
    `spread` metrics are reported as four values: <name>/min, /mean, /max and /worst (the member's label)."""

    name: str
    unit: str
    meaning: str
    better: Better = "neither"
    spread: bool = False

    @property
    def group(self) -> str:
        return self.name.split("/")[0]


_m = Metric  # short, for the tables


METRICS: tuple[Metric, ...] = (
    _m("queue/depth", "groups", "finished groups waiting when the trainer asked for a batch"),
    _m("queue/capacity", "groups", "largest number of groups that may be waiting"),
    _m("queue/in_flight_groups", "groups", "groups being generated at that same moment"),
    _m("queue/in_flight_rollouts", "rollouts", "rollouts being generated at that same moment"),
    _m("staleness/mean", "versions", "trainer version minus sampling version, mean over trained tokens", "lower"),
    _m("staleness/p95", "versions", "95th percentile of the same", "lower"),
    _m("staleness/max", "versions", "largest of the same; never above train.max_staleness", "lower"),
    _m("staleness/hist", "tokens", "trained tokens by staleness: list, index = versions behind"),
    _m("staleness/masked_tokens", "tokens", "sampled tokens masked at consumption because they were over age", "lower"),
    _m("staleness/dropped_rollouts", "rollouts", "rollouts dropped because every token was over age", "lower"),
    _m("staleness/spanning_rollouts", "rollouts", "trained rollouts whose tokens come from more than one version"),
    _m("is/ratio_mean", "ratio", "mean importance ratio trainer/sampler over trained tokens"),
    _m("is/masked_frac", "token share", "share of trained tokens whose gradient the correction removed", "lower"),
    _m("is/masked_low_frac", "token share", "the part of it below the band", "lower"),
    _m("is/masked_high_frac", "token share", "the part of it above the band", "lower"),
    _m("is/clipped_frac", "token share", "share of tokens whose weight was clipped into the band", "lower"),
    _m("is/truncated_frac", "token share", "share of tokens whose weight was cut at the upper bound", "lower"),
    _m("is/masked_seq_frac", "sequence share", "share of sequences that the correction removed whole", "lower"),
    _m("is/ess_frac", "share", "effective sample size of the weights over the number of kept tokens", "higher"),
    _m("is/kept_grad_frac", "share", "share of the sum of |advantage| x ratio that the mask lets through", "higher"),
    _m("mismatch/k3_kl", "nats", "probe sequences right after an update: k3 of sampler against trainer", "lower"),
    _m("mismatch/abs_diff", "nats", "probe: mean |log-prob difference|", "lower"),
    _m("mismatch/max_prob_diff", "probability", "probe: largest probability difference of one token", "lower"),
    _m("mismatch/bitwise_frac", "share", "probe: share of log-probs equal to the last bit", "higher"),
    _m("offpolicy/k3_kl", "nats", "trained tokens: k3, numerics and staleness together", "lower"),
    _m("offpolicy/abs_diff", "nats", "trained tokens: mean |log-prob difference|", "lower"),
    _m("routing/mismatch_frac", "share", "(token, MoE layer) pairs whose live top-k differs from the sampler's", "lower"),
    _m("routing/token_mismatch_frac", "token share", "tokens with at least one such layer", "lower"),
    _m("routing/replayed_mismatch_frac", "share", "the same for the ids the experts really consumed", "lower"),
    _m("routing/coverage_frac", "share", "(token, layer) pairs for which the sampler reported its choice", "higher"),
    _m("routing/missing_frac", "share", "pairs without a report; they keep the live choice", "lower"),
    _m("routing/layer_mismatch", "share", "mismatch per MoE layer: list in layer order", "lower"),
    _m("reward/mean", "reward", "mean reward of the batch's rollouts", "higher"),
    _m("reward/std", "reward", "standard deviation of the same"),
    _m("reward/max", "reward", "largest reward of the batch", "higher"),
    _m("reward/zero_std_group_frac", "group share", "groups whose rollouts all got the same reward: no gradient", "lower"),
    _m("reward/missing", "rollouts", "rollouts without a finite reward, kept from their group's statistics", "lower"),
    _m("rollout/response_len_mean", "tokens", "sampled tokens per rollout"),
    _m("rollout/turns_mean", "turns", "model turns per rollout"),
    _m("rollout/segments_mean", "segments", "segments per rollout, where the runner can open several"),
    _m("rollout/truncated_frac", "rollout share", "rollouts cut by a length or turn limit", "lower"),
    _m("rollout/failed", "rollouts", "rollouts that failed for good since the last step", "lower"),
    _m("rollout/retried", "rollouts", "rollout attempts that failed and were started again", "lower"),
    _m("rollout/filter_pass_frac", "group share", "groups that the dynamic filter let through since the last step", "higher"),
    _m("loss/policy", "loss", "policy objective that was minimised"),
    _m("loss/kl", "nats", "mean KL estimate of trained tokens, in the loss or in the reward", "lower"),
    _m("loss/kl_coef", "coefficient", "coefficient of the KL in this step"),
    _m("loss/entropy", "nats", "mean token entropy of the policy"),
    _m("loss/clip_frac", "token share", "tokens whose policy ratio was clipped"),
    _m("loss/value", "loss", "objective of the critic", "lower"),
    _m("loss/value_clip_frac", "token share", "tokens whose value moved beyond critic.value_clip"),
    _m("optim/critic_grad_norm", "norm", "global gradient norm of the critic before clipping"),
    _m("optim/grad_norm", "norm", "global gradient norm before clipping"),
    _m("optim/lr", "1/step", "learning rate of this step"),
    _m("optim/skipped", "steps", "1 when no step was taken: no token to train, or a gradient that is not finite", "lower"),
    _m("time/step", "s", "wall time of the step", "lower"),
    _m("time/wait_batch", "s", "trainer waiting for a full batch", "lower"),
    _m("time/prepare", "s", "rewards, advantages and dispatch of the batch", "lower"),
    _m("time/measure", "s", "passes that the advantages need: KL in the reward, distillation, values", "lower"),
    _m("time/forward_backward", "s", "forward and backward passes", "lower"),
    _m("time/optim", "s", "clipping and optimizer", "lower"),
    _m("time/weight_sync", "s", "publication of the weights, pause included", "lower"),
    _m("time/pause", "s", "engines paused for it", "lower"),
    _m("time/drain", "s", "waiting for rollouts in flight before an update (partial rollouts off)", "lower"),
    _m("time/report", "s", "collecting engine figures and writing traces", "lower"),
    _m("time/probe", "s", "scoring the probe sequences", "lower"),
    _m("time/eval", "s", "evaluation since the last step", "lower"),
    _m("time/checkpoint", "s", "saving since the last step", "lower"),
    _m("time/unaccounted_frac", "share", "step time that no timer covers", "lower"),
    _m("time/trainer_idle_frac", "share", "trainer neither computing nor publishing", "lower"),
    _m("time/rollout_idle_frac", "share", "engines without a request while allowed to work", "lower"),
    _m("perf/rollout_tok_s", "tokens/s", "tokens sampled by all engines", "higher"),
    _m("perf/train_tok_s", "tokens/s", "tokens (prompt included) through the trainer", "higher"),
    _m("perf/kept_tok_s", "tokens/s", "trained tokens that kept a gradient, per wall second", "higher"),
    _m("perf/mfu", "share", "model FLOP/s of forward and backward over the trainer devices' peak in bf16", "higher"),
    _m("perf/gpu_mem_peak_gb", "GiB", "largest memory that a trainer rank's tensors took in the step", "lower"),
    _m("sync/bytes", "bytes", "payload of one publication"),
    _m("sync/gb_s", "GB/s", "payload over transfer time", "higher"),
    _m("engine/running", "requests", "requests running, mean over the step", "neither", True),
    _m("engine/waiting", "requests", "requests waiting inside the engine, mean over the step", "lower", True),
    _m("engine/kv_frac", "share", "KV cache in use, mean over the step", "neither", True),
    _m("engine/preemptions", "count", "preemptions since the last step", "lower", True),
    _m("engine/version", "version", "policy version served", "higher", True),
    _m("engine/restarts", "count", "engine restarts since the start of the attempt", "lower", True),
    _m("host/cpu", "share", "CPU use of the host", "neither", True),
    _m("host/mem", "share", "memory use of the host", "neither", True),
    _m("host/gpu_util", "share", "GPU use", "higher", True),
    _m("host/gpu_mem", "share", "GPU memory in use", "neither", True),
)

FAMILIES: tuple[Metric, ...] = (
    _m("eval/<name>/score_mean", "score", "mean score of the evaluation's rollouts", "higher"),
    _m("eval/<name>/reward_mean", "reward", "mean reward of the evaluation's rollouts", "higher"),
    _m("eval/<name>/exact_frac", "share", "share of prompts whose first rollout scored at least 1", "higher"),
    *(
        _m(f"eval/<name>/pass_at_{2**i}", "share", f"prompts solved by at least one of {2**i} rollouts", "higher")
        for i in range(9)
    ),
    _m("eval/<name>/response_len_mean", "tokens", "sampled tokens per evaluation rollout"),
    _m("eval/<name>/truncated_frac", "share", "evaluation rollouts cut by a limit", "lower"),
    _m("eval/<name>/failed", "rollouts", "evaluation rollouts that failed", "lower"),
    _m("eval/<name>/version", "version", "policy version that was evaluated"),
    _m("eval/<name>/rollouts", "rollouts", "number of rollouts behind the scores"),
    _m("rollout/dropped/<name>", "rollouts", "rollouts dropped for this reason since the last step", "lower"),
    _m("env/<name>", "value", "mean of a number that the environment put into info"),
)

SPREAD_PARTS = ("min", "mean", "max", "worst")
_REPORTED = {m.name: m for m in METRICS if not m.spread} | {f"{m.name}/{p}": m for m in METRICS if m.spread for p in SPREAD_PARTS}


def describe(key: str) -> Metric | None:
    """The schema entry for a reported key, families and spreads included; None for an unknown key."""
    if key in _REPORTED:
        return _REPORTED[key]
    for family in FAMILIES:
        before, after = family.name.split("<name>")
        if key.startswith(before) and key.endswith(after) and len(key) > len(before) + len(after):
            return family
    return None


def spread(name: str, values: dict[str, float], worst_is_high: bool = True) -> dict[str, float | str]:
    """min, mean, max and the worst member's label of a per-member measurement; empty when nothing was measured."""
    if not values:
        return {}
    pick = max if worst_is_high else min
    return {
        f"{name}/min": min(values.values()),
        f"{name}/mean": sum(values.values()) / len(values),
        f"{name}/max": max(values.values()),
        f"{name}/worst": pick(values, key=values.__getitem__),
    }
