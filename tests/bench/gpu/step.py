"""Our training step against the least loop over the same packed batch: a random 1 B mixture of experts on one GPU.

usage: python -m tests.bench.gpu.step MODELS OUT [cpu] [profile]     profile: OUT/step-profile.txt says where the time goes
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from engine.config import Config
from engine.records import Rollout, Segment
from engine.train.actor import Trainer
from engine.train.balance import plan_optimizer_steps
from engine.train.model import DTYPES, ModelOptions, load_causal_lm, shard_layers
from engine.train.packing import Packing, use_packed_attention
from engine.train.plan import SampleRef, TrainerSpec, TrainOrder
from tests.bench.figures import report, wait_for_turn

ROLLOUTS, PROMPT, MEDIAN, SIGMA, LONGEST = 256, 32, 192, 0.6, 640
WARM_UP, ROUNDS = 2, 11


def random_segment(rng: np.random.Generator, vocab: int, layers: int, experts: int, top_k: int) -> Segment:
    length = PROMPT + int(min(LONGEST, max(1, round(MEDIAN * rng.lognormal(0.0, SIGMA)))))
    mask = np.arange(length) >= PROMPT
    routing = np.argsort(rng.random((length, layers, experts), np.float32), -1)[..., :top_k].astype(np.int16)
    routing[-1] = -1
    return Segment(
        token_ids=rng.integers(0, vocab, length).astype(np.int32), loss_mask=mask,
        logprobs=np.where(mask, -6 - rng.random(length), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32), routed_experts=routing,
    )  # fmt: skip


def random_order(config: Config, model: Any, count: int) -> TrainOrder:
    """One optimizer step over `count` segments of long-tailed lengths, with advantages of either sign."""
    rng = np.random.default_rng(0)
    shape = (model.vocab_size, model.num_hidden_layers, model.num_experts, model.num_experts_per_tok)
    segments = [random_segment(rng, *shape) for _ in range(count)]
    payload = [Rollout(f"r{i}", f"p{i // 8}", [segment]) for i, segment in enumerate(segments)]
    lengths = [len(s) for s in segments]
    steps = plan_optimizer_steps(
        lengths, [s.sampled for s in segments], list(range(count)), [i // 8 for i in range(count)], rollouts_per_step=count,
        ranks=1, budget=config.train.max_tokens_per_gpu, packed=config.fsdp.packing_samples,
    )  # fmt: skip
    samples = [SampleRef(payload, i, 0, length, float(rng.normal())) for i, length in enumerate(lengths)]
    return TrainOrder(0, 0, samples, steps)


@dataclass
class Packed:
    """One micro-batch as a plain loop would be given it, on the device: N inputs, their targets and what the loss needs."""

    packing: Packing
    ids_1N: torch.Tensor
    targets_N: torch.Tensor
    sampled_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    mask_N: torch.Tensor


class BareLoop:
    """AutoModel's class under fully_shard, stock clipping and AdamW, one packed row per micro-batch, cross entropy over
    all positions, ratio times advantage; no routing, no metrics, nothing read back but the norm. Its batches are ready on
    the device."""

    def __init__(self, trainer: Trainer, order: TrainOrder) -> None:
        config = trainer.config
        options, mesh = ModelOptions.of(config, trainer.spec.device), trainer.layout.whole
        self.model = load_causal_lm(trainer.spec.model_path, trainer.layout, options)
        if not any(isinstance(module, FSDPModule) for module in self.model.modules()):
            shard_layers(mesh, options, self.model)
        dtype = DTYPES[config.fsdp.param_dtype]
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(self.model, mesh=mesh, mp_policy=precision)
        self.attention = use_packed_attention(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.batches = self._packed(trainer, order)
        self.tokens = order.optimizer_steps[0].tokens

    def _packed(self, trainer: Trainer, order: TrainOrder) -> list[Packed]:
        found = []
        for batch in trainer._load(order)[0]:
            kept_N = batch.packing.kept_N
            columns = (batch.rollout_logprobs_BT, batch.advantages_BT, batch.mask_BT)
            found.append(Packed(
                batch.packing, batch.input_ids_BT[:, :-1].flatten()[kept_N][None],
                *(x_BT[:, 1:].flatten()[kept_N] for x_BT in (batch.input_ids_BT, *columns)),
            ))  # fmt: skip
        return found

    def step(self) -> float:
        for index, batch in enumerate(self.batches):
            self.model.set_requires_gradient_sync(index == len(self.batches) - 1)
            self.attention.packing = batch.packing
            output = self.model(input_ids=batch.ids_1N, position_ids=batch.packing.positions_1M, use_cache=False)
            logits_NV = (output if isinstance(output, torch.Tensor) else output.logits).flatten(0, 1)
            logprobs_N = -cross_entropy(logits_NV.float(), batch.targets_N, reduction="none")
            ratio_N = (logprobs_N - batch.sampled_logprobs_N).exp()
            (-(ratio_N * batch.advantages_N * batch.mask_N).sum() / self.tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of `work`, with everything done that the GPU was given before and by it, and what it returns."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    started = time.perf_counter()
    found = work()
    synchronize()
    return time.perf_counter() - started, found


def trained(trainer: Trainer, order: TrainOrder, routing: bool) -> dict[str, Any]:
    """Our step; without `routing` neither replay nor its measurement."""
    kept = trainer.policy.routing, trainer.routing_shape
    if not routing:
        trainer.policy.routing = trainer.routing_shape = None
    found = trainer.train(order)
    trainer.policy.routing, trainer.routing_shape = kept
    return found.metrics | {f"time/{phase}": value for phase, value in found.seconds.items()}


def main() -> None:
    models, out, device = Path(sys.argv[1]), Path(sys.argv[2]), "cpu" if "cpu" in sys.argv else "cuda"
    torch._dynamo.config.disable = True  # AutoModel would tune its expert activation for 16 s
    path = models / "moe_1b"
    small = device == "cpu"
    config = Config.model_validate({
        "fsdp": {"param_dtype": "fp32" if small else "bf16", "packing_samples": True}, "actor": {"adam": {"lr": 1e-6}},
        "vllm": {"dtype": "float32" if small else "bfloat16"}, "train": {"routing_replay": True, "logprob_chunk_tokens": 16192},
    })  # fmt: skip
    shape = json.loads((path / "config.json").read_text())
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(config, str(path), device=device))
    order = random_order(config, trainer.model_config, 8 if small else ROLLOUTS)
    first = trained(trainer, order, routing=True)
    if "perf/gpu_mem_peak_gb" in first:
        memory(config, shape, first["perf/gpu_mem_peak_gb"])
    bare = BareLoop(trainer, order)
    wait_for_turn()
    measure(trainer, order, bare, out)


def measure(trainer: Trainer, order: TrainOrder, bare: BareLoop, out: Path) -> None:
    kinds: dict[str, Callable[[], Any]] = {
        "replay": lambda: trained(trainer, order, routing=True), "no_routing": lambda: trained(trainer, order, routing=False),
        "bare_loop": bare.step,
    }  # fmt: skip
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    phases: list[dict[str, float]] = []
    for _ in range(WARM_UP + ROUNDS):
        for kind, work in kinds.items():
            gc.collect()
            taken, metrics = seconds(work)
            times[kind].append(taken)
            if kind == "no_routing":
                ours = {k: v for k, v in metrics.items() if k.startswith("time/")}
                phases.append(ours | {"time/rest": taken - sum(ours.values()), "mfu": metrics.get("perf/mfu", 0.0)})
    print("train step", {k: [round(s, 4) for s in v] for k, v in times.items()}, flush=True)
    step = {k: statistics.median(v[WARM_UP:]) for k, v in times.items()}
    for name in phases[0]:
        report(f"step/{name}", statistics.median(p[name] for p in phases[WARM_UP:]), "share" if name == "mfu" else "s")
    report("step/micro_batches", len(order.optimizer_steps[0].micro_batches[0]), "")
    report("step/train_step_s", step["replay"], "s")
    report("step/train_tok_s", sum(sample.length for sample in order.samples) / step["replay"], "tokens/s")
    shares = [1 - without / ours for ours, without in zip(times["replay"], times["no_routing"], strict=True)]
    report("step/replay_share_of_step", statistics.median(shares[WARM_UP:]), "share")
    report("step/bare_loop_s", step["bare_loop"], "s")
    # Of neighbours in time, so that a host that slows down for a while does not count.
    ratios = [bare / ours for bare, ours in zip(times["bare_loop"], times["no_routing"], strict=True)]
    report("step/speed_of_bare_loop", statistics.median(ratios[WARM_UP:]), "ratio")
    if "profile" in sys.argv:
        with (out / "step-profile.txt").open("w") as file:
            for kind in ("no_routing", "bare_loop"):
                print(f"== {kind}", where_the_time_goes(kinds[kind]), sep="\n", file=file)


def where_the_time_goes(work: Callable[[], Any]) -> str:
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as found:
        seconds(work)
    averages = found.key_averages()
    keys = ["self_cpu_time_total"] + ["self_device_time_total"] * torch.cuda.is_available()
    return "\n".join(averages.table(sort_by=key, row_limit=45, max_name_column_width=70) for key in keys)


def memory(config: Config, shape: dict[str, Any], peak_gib: float) -> None:
    """The trainer's measured peak of tensors against the table that a launch shows before it starts."""
    from molt_tui.slurm.architecture import from_config
    from molt_tui.slurm.memory import estimate

    table = estimate(from_config(shape), config, 140.0)
    expected = sum(part.gib for part in table.parts if part.where == "trainer" and part.part != "runtime")
    report("memory/trainer_peak", peak_gib, "GiB")
    report("memory/trainer_preflight", expected, "GiB")
    report("memory/peak_over_preflight", peak_gib / expected, "ratio")


if __name__ == "__main__":
    main()
