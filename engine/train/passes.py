"""Forward and backward passes over micro-batches, and the sums they leave behind."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from engine.algo.correction import importance_weights
from engine.algo.loss import Denominators, PolicySettings, finish_policy, policy_objective
from engine.algo.mismatch import finish_gap, gap_sums
from engine.algo.sums import Sums, is_maximum
from engine.train.collate import MicroBatch
from engine.train.model import PolicyModel
from engine.train.packing import Packing
from engine.train.plan import OptimizerStep, TraceTensors
from engine.train.replay import finish_routing


@dataclass(frozen=True)
class PassSettings:
    """What every training pass of one optimizer step has in common."""

    policy: PolicySettings
    step: OptimizerStep
    ranks: int

    def denominators(self, batch: MicroBatch) -> Denominators:
        """Counts of the whole optimizer step, and those of the prompts of these rows; a row of padding has its own prompt."""
        step = self.step
        prompt_tokens_S = torch.tensor([step.prompt_tokens[s] for s in batch.samples] or [1])
        return Denominators(step.tokens, step.rows, step.prompts, prompt_tokens_S.to(batch.mask_BT.device, non_blocking=True))


def train_pass(
    policy: PolicyModel, batch: MicroBatch, old_logprobs_BT: torch.Tensor | None, settings: PassSettings, traced_rows: list[int],
    reference_BT: torch.Tensor | None = None,
) -> tuple[Sums, list[TraceTensors]]:  # fmt: skip
    """Forward and backward of one micro-batch; gradients accumulate in the policy.

    Gradients are averaged over `settings.ranks` ranks by FSDP, so the loss is multiplied by their number: what is added up
    in the end is the aggregate over the whole optimizer step.
    """
    if policy.routing is not None:
        policy.routing.begin(batch.routing)
    output = policy(
        batch.input_ids_BT,
        batch.mask_BT,
        batch.temperatures_BT,
        bool(settings.policy.entropy_coef),
        batch.packing,
        batch.trained_N,
    )
    loss, sums = policy_objective(
        output.logprobs_BT, old_logprobs_BT, batch.rollout_logprobs_BT, batch.advantages_BT, batch.mask_BT,
        output.entropy_BT, settings.policy, settings.denominators(batch), reference_BT,
    )  # fmt: skip
    (loss * settings.ranks).backward()
    current_BT = output.logprobs_BT.detach() if old_logprobs_BT is None else old_logprobs_BT
    sums |= gap_sums(current_BT, batch.rollout_logprobs_BT, batch.mask_BT)
    mismatch_NL = None
    if policy.routing is not None:
        routing_sums, mismatch_NL = policy.routing.end()
        sums |= routing_sums
        if batch.packing is not None and traced_rows:
            own_NL = batch.packing.place(mismatch_NL.float(), batch.mask_BT[:, 1:].numel())
            mismatch_NL = batch.packing.split.joined(own_NL)
    traces = trace_rows(batch, current_BT, mismatch_NL, settings.policy, traced_rows) if traced_rows else []
    return sums, traces


@torch.no_grad()
def logprob_pass(
    policy: PolicyModel, input_ids_BT: torch.Tensor, wanted_BT: torch.Tensor, temperatures_BT: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> torch.Tensor:  # fmt: skip
    """Log-probs (B, T) of the wanted tokens under the present weights."""
    logprobs_BT = policy(input_ids_BT, wanted_BT, temperatures_BT, packing=packing).logprobs_BT
    # A forward without backward leaves the root gathered; the next one would then compute with old weights.
    policy.reshard()
    return logprobs_BT


def replayed_logprobs(policy: PolicyModel, batch: MicroBatch, wanted_BT: torch.Tensor) -> torch.Tensor:
    """Log-probs (B, T) of the wanted tokens, with the replay of the training pass but not measured."""
    with policy.routing.unmeasured(batch.routing) if policy.routing else nullcontext():
        return logprob_pass(policy, batch.input_ids_BT, wanted_BT, batch.temperatures_BT, batch.packing)


def trace_rows(
    batch: MicroBatch, logprobs_BT: torch.Tensor, mismatch_NL: torch.Tensor | None, policy: PolicySettings, rows: list[int]
) -> list[TraceTensors]:
    """Per-token outcome of the traced rows: `kept` where the token is trained and the correction left it a gradient."""
    traced = (logprobs_BT[rows], batch.rollout_logprobs_BT[rows], batch.mask_BT[rows])
    kept_RT = traced[2] & (importance_weights(*traced, policy.correction).weights_ST != 0)
    traces = []
    for row, kept_T in zip(rows, kept_RT, strict=True):
        length = batch.lengths[row]
        mismatch = None
        if mismatch_NL is not None:
            mismatch_BTL = mismatch_NL.view(len(logprobs_BT), -1, mismatch_NL.shape[1])
            mismatch = np.zeros((length, mismatch_NL.shape[1]), bool)
            mismatch[:-1] = mismatch_BTL[row, : length - 1].cpu().numpy()
        logprobs, kept = (values_T[:length].cpu().numpy() for values_T in (logprobs_BT[row], kept_T))
        traces.append(TraceTensors(batch.samples[row], logprobs, kept, mismatch))
    return traces


def staleness_sums(batches: list[MicroBatch], max_staleness: int) -> Sums:
    """Trained tokens by versions behind (max_staleness + 1 entries), and sampled tokens that are over age."""
    ages = np.concatenate([b.staleness for b in batches])
    hist = np.bincount(ages, minlength=max_staleness + 1)
    masked = sum(b.masked_tokens for b in batches)
    return {
        "staleness/hist": torch.from_numpy(hist).double(),
        "staleness/masked_tokens": torch.tensor(masked, dtype=torch.float64),
    }


def reduce_sums(sums: Sums, device: torch.device, copies: int) -> Sums:
    """The sums of all ranks together; every rank must hold the same keys and shapes.

    copies  ranks that work on the same samples and hold the same sums; those of routing are of each rank's own tokens
    """
    reduced = {k: v if k.startswith("routing/") or is_maximum(k) else v / copies for k, v in sums.items()}
    for maximum in (False, True):
        keys = sorted(k for k in sums if is_maximum(k) == maximum)
        if not keys:
            continue
        flat = torch.cat([reduced[k].reshape(-1).double().to(device) for k in keys])
        dist.all_reduce(flat, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM)
        parts = flat.cpu().split([sums[k].numel() for k in keys])
        reduced |= {k: part.view(sums[k].shape) for k, part in zip(keys, parts, strict=True)}
    return reduced


def finish_metrics(sums: Sums) -> dict[str, float | list[float]]:
    """Every metric of engine/metrics.py that the sums of a batch give; absent where nothing was measured."""
    gap = {f"offpolicy/{k}": v for k, v in finish_gap(sums).items() if k in ("k3_kl", "abs_diff")} if "gap/k3" in sums else {}
    policy = finish_policy(sums) if "loss/tokens" in sums else {}
    return gap | policy | finish_routing(sums) | finish_staleness(sums)


def finish_staleness(sums: Sums) -> dict[str, float | list[float]]:
    """staleness/* of the trained tokens; mean, p95 and max are absent when there were none."""
    hist = sums["staleness/hist"].numpy()
    values: dict[str, float | list[float]] = {
        "staleness/hist": hist.tolist(),
        "staleness/masked_tokens": float(sums["staleness/masked_tokens"]),
    }
    total = hist.sum()
    if total > 0:
        values["staleness/mean"] = float((hist * np.arange(len(hist))).sum() / total)
        values["staleness/p95"] = float(np.searchsorted(hist.cumsum(), 0.95 * total))
        values["staleness/max"] = float(np.flatnonzero(hist)[-1])
    return values
