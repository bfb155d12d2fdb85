"""From finished groups to a training order: rewards, staleness, advantages, micro-batches. Pure apart from the inputs."""

import math
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.agents.load import AgentError, load_module
from engine.algo.advantage import ESTIMATORS, AdvantageInputs, checked, generalized_advantages
from engine.config import Config
from engine.errors import one_line
from engine.rollout.filtering import FILTER_REASONS
from engine.rollout.pool import Batch
from engine.rollout.transport import FinishedGroup, RolloutSummary, SegmentSummary
from engine.train.balance import plan_optimizer_steps
from engine.train.plan import Measured, SampleRef, TrainOrder


@dataclass
class Row:
    """One trainable segment: where it stands in the batch and how many of its tokens are young enough."""

    group: FinishedGroup
    rollout: int
    segment: int
    summary: SegmentSummary
    rollout_index: int
    trained: int


@dataclass
class PreparedBatch:
    """The order for the trainer, the rows behind its samples, and what the controller already knows to report.

    rewards, groups  reward and group index of each rollout that has a row
    dropped_tokens   sampled tokens of the rollouts that were dropped for age, which no rank will see
    advantages       mean advantage of each row, once `set_advantages` has run
    """

    order: TrainOrder
    rows: list[Row]
    rewards: list[float]
    groups: list[int]
    advantages: list[float] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    dropped_tokens: int = 0


def young_tokens(summary: SegmentSummary, oldest: int) -> int:
    """Sampled tokens of the segment whose version is at least `oldest`."""
    return sum(count for version, count in summary.version_tokens.items() if version >= oldest)


def select_rows(groups: list[FinishedGroup], oldest: int) -> tuple[list[Row], list[RolloutSummary], list[RolloutSummary]]:
    """Rows to train, the rollouts behind them, and the rollouts dropped because every token is over age."""
    rows: list[Row] = []
    rollouts: list[RolloutSummary] = []
    dropped: list[RolloutSummary] = []
    for group in groups:
        for r, rollout in enumerate(group.rollouts):
            trained = [young_tokens(s, oldest) for s in rollout.segments]
            (rollouts if any(trained) else dropped).append(rollout)
            for s, summary in enumerate(rollout.segments):
                if trained[s]:
                    rows.append(Row(group, r, s, summary, len(rollouts) - 1, trained[s]))
    return rows, rollouts, dropped


def clipped_reward(reward: float, clip_range: tuple[float, float]) -> float:
    """The reward inside the range; NaN and infinities stay, they count as missing."""
    return min(max(reward, clip_range[0]), clip_range[1]) if math.isfinite(reward) else math.nan


def shaped_reward(rollout: RolloutSummary, config: Config) -> float:
    """The reward after the length penalties and the clip range.

    over-long:      r - factor * clamp(longest segment - (max_len - buffer), 0, buffer) / buffer   (Yu et al., "DAPO", 2025)
    stop properly:  truncated rollouts get coef * r, or coef itself where it is below 0
    """
    settings, reward = config.reward, rollout.reward
    if settings.overlong_buffer_len is not None:
        buffer = settings.overlong_buffer_len
        excess = max(s.length for s in rollout.segments) - (config.data.max_len - buffer)
        reward -= settings.overlong_penalty_factor * min(max(excess, 0), buffer) / buffer
    coef = settings.stop_properly_penalty_coef
    if coef is not None and rollout.truncated and math.isfinite(reward):
        reward = coef if coef < 0 else coef * reward
    return clipped_reward(reward, settings.clip_range)


def load_own_estimator(path: Path) -> None:
    """Register the function `estimator` of a user's file as `own`, tried on two rollouts. Raises AgentError."""
    flag = "algo.advantage.estimator_path"
    compute = getattr(load_module(path, flag), "estimator", None)
    if not callable(compute):
        raise AgentError(f"{flag}: {path.name} must export a function `estimator(inputs)`")
    example = AdvantageInputs(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 1]), torch.ones(2, 2).bool())
    ESTIMATORS["own"] = checked(compute)
    try:
        ESTIMATORS["own"](example)
    except Exception as error:
        raise AgentError(f"{flag}: {path.name} failed on two rollouts of two tokens: {one_line(error)}") from error


def set_advantages(batch: PreparedBatch, measured: dict[int, Measured], config: Config) -> None:
    """Advantages of every sample of the order; `measured` by sample is needed where `config.measures_first`."""
    if not batch.rows:
        return
    inputs = advantage_inputs(batch, measured, config)
    advantages_ST = ESTIMATORS[config.algo.advantage.estimator](inputs)
    # An advantage that all tokens share travels as a number.
    shared_S = ((advantages_ST == advantages_ST[:, :1]) | ~inputs.mask_ST).all(1)
    firsts, rows = advantages_ST[:, 0].tolist(), [] if shared_S.all() else by_row(advantages_ST, inputs.mask_ST)
    for s, (sample, shared) in enumerate(zip(batch.order.samples, shared_S.tolist(), strict=True)):
        sample.advantage = firsts[s] if shared else rows[s]
    means_S = torch.where(inputs.mask_ST, advantages_ST, 0).sum(1) / inputs.mask_ST.sum(1)
    batch.advantages += means_S.tolist()
    if inputs.values_ST is not None:
        # What the critic learns: its values before the batch, and the returns they should have been.
        returns_ST = generalized_advantages(inputs) + inputs.values_ST
        values, returns = by_row(inputs.values_ST, inputs.mask_ST), by_row(returns_ST, inputs.mask_ST)
        for sample, sample_values, sample_returns in zip(batch.order.samples, values, returns, strict=True):
            sample.values, sample.returns = sample_values, sample_returns


def by_row(values_ST: torch.Tensor, mask_ST: torch.Tensor) -> list[np.ndarray]:
    """The values of each row's tokens on the mask: float32, one array per row."""
    ends = mask_ST.sum(1).cumsum(0)[:-1].numpy()
    return np.split(values_ST[mask_ST].float().numpy(), ends)


def advantage_inputs(batch: PreparedBatch, measured: dict[int, Measured], config: Config) -> AdvantageInputs:
    """Shapes (S, T) over the sampled tokens of each row, feedback left out, so a discount counts sampled tokens."""
    sampled_S = torch.tensor([row.summary.sampled for row in batch.rows])
    mask_ST = torch.arange(int(sampled_S.max()))[None, :] < sampled_S[:, None]
    settings = config.algo.advantage
    found = [measured[s] for s in range(len(batch.rows))] if config.measures_first else []

    def aligned(rows: list[np.ndarray]) -> torch.Tensor:
        values_ST = torch.zeros(mask_ST.shape, dtype=torch.float64)
        values_ST[mask_ST] = torch.from_numpy(np.concatenate(rows)).double()
        return values_ST

    return AdvantageInputs(
        rewards_R=torch.tensor(batch.rewards, dtype=torch.float64),
        group_R=torch.tensor(batch.groups),
        rollout_S=torch.tensor([row.rollout_index for row in batch.rows]),
        mask_ST=mask_ST,
        token_rewards_ST=aligned([m.rewards for m in found]) if config.token_rewards else None,
        values_ST=aligned([m.values for m in found]) if settings.estimator == "gae" else None,
        lam=settings.lam,
        gamma=settings.gamma,
        no_whiten=settings.no_whiten,
    )


def reward_metrics(rewards: list[float], groups: list[int]) -> dict[str, float]:
    """reward/* of the batch. A group with fewer than two rewards says nothing about its spread and is left out."""
    values = np.array(rewards, dtype=np.float64)
    present = np.isfinite(values)
    found: dict[str, float] = {"reward/missing": float((~present).sum())}
    if present.any():
        found |= {"reward/mean": float(values[present].mean()), "reward/std": float(values[present].std()),
                  "reward/max": float(values[present].max())}  # fmt: skip
    members = np.array(groups)
    spreads = [np.ptp(values[mine]) for g in set(groups) if (mine := present & (members == g)).sum() > 1]
    if spreads:
        found["reward/zero_std_group_frac"] = float(np.mean([s == 0 for s in spreads]))
    return found


def rollout_metrics(groups: list[FinishedGroup]) -> dict[str, float]:
    """rollout/* and env/* of the consumed groups."""
    rollouts = [r for g in groups for r in g.rollouts]
    found = {f"rollout/{name}": float(sum(getattr(g, name) for g in groups)) for name in ("failed", "retried")}
    for reason in {reason for g in groups for reason in g.dropped}:
        found[f"rollout/dropped/{reason}"] = float(sum(g.dropped.get(reason, 0) for g in groups))
    if not rollouts:
        return found
    found["rollout/response_len_mean"] = float(np.mean([r.sampled for r in rollouts]))
    found["rollout/turns_mean"] = float(np.mean([r.turns for r in rollouts]))
    found["rollout/truncated_frac"] = float(np.mean([r.truncated for r in rollouts]))
    for key in sorted({key for r in rollouts for key in r.info}):
        found[f"env/{key}"] = float(np.mean([r.info[key] for r in rollouts if key in r.info]))
    return found


def spanning_rollouts(rollouts: list[RolloutSummary]) -> int:
    """Rollouts whose sampled tokens come from more than one policy version."""
    return sum(len({v for s in r.segments for v in s.version_tokens}) > 1 for r in rollouts)


def prepare(taken: Batch, max_staleness: int, config: Config) -> PreparedBatch:
    """Build the order for one consumed batch; a few rollouts, evenly spread, are marked for inspection.

    Its advantages are still missing where `config.measures_first`.
    """
    groups = taken.groups
    rows, rollouts, dropped = select_rows(groups, taken.version - max_staleness)
    rewards = [shaped_reward(r, config) for r in rollouts]
    group_index = {g.group_id: i for i, g in enumerate(groups)}
    rollout_groups = [0] * len(rollouts)
    for row in rows:
        rollout_groups[row.rollout_index] = group_index[row.group.group_id]
    traced = traced_rollouts(rollout_groups, config.trace.rollouts_per_step)
    samples = [sample_ref(row, row.rollout_index in traced) for row in rows]
    steps = plan_optimizer_steps(
        lengths=[row.summary.length for row in rows],
        tokens=[row.trained for row in rows],
        rollouts=[row.rollout_index for row in rows],
        prompts=[rollout_groups[row.rollout_index] for row in rows],
        rollouts_per_step=config.train.batch_size or max(len(rollouts), 1),
        ranks=config.data_ranks,
        budget=config.train.max_tokens_per_gpu * config.fsdp.cp_size,
        packed=config.fsdp.packing_samples,
    )
    order = TrainOrder(taken.version, max_staleness, samples, steps)
    metrics = taken.queue | reward_metrics(rewards, rollout_groups) | rollout_metrics(groups + taken.lost)
    if config.algo.dynamic_filtering_enable:
        refused = sum(bool(FILTER_REASONS & g.dropped.keys()) for g in taken.lost)
        metrics["rollout/filter_pass_frac"] = len(groups) / (len(groups) + refused)
    metrics["staleness/dropped_rollouts"] = float(len(dropped))
    metrics["staleness/spanning_rollouts"] = float(spanning_rollouts(rollouts))
    dropped_tokens = sum(r.sampled for r in dropped)
    prepared = PreparedBatch(order, rows, rewards, rollout_groups, metrics=metrics, dropped_tokens=dropped_tokens)
    if not config.measures_first:
        set_advantages(prepared, {}, config)
    return prepared


def traced_rollouts(groups: list[int], wanted: int) -> set[int]:
    """Indices of at most `wanted` rollouts, given the group of each, in order: groups evenly spread, whole for comparison."""
    whole = [list(members) for _, members in groupby(range(len(groups)), groups.__getitem__)]
    fit = min(len(whole), max(1, wanted // max(map(len, whole), default=1)))
    return set([i for k in range(fit) for i in whole[k * len(whole) // fit]][:wanted])


def sample_ref(row: Row, traced: bool) -> SampleRef:
    return SampleRef(row.group.payload, row.rollout, row.segment, row.summary.length, trace=traced)
