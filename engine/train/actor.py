"""One trainer rank: loads the policy, trains on ordered batches, hands out weights, saves and restores itself.

A plain class, so that tests run it in-process; placement makes a Ray actor of it. All ranks get the same calls.
"""

import collections
import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist

from engine.algo.correction import CorrectionRule
from engine.algo.kl import adapted_coef, kl_estimate
from engine.algo.loss import PolicySettings, kl_sums
from engine.algo.sums import Sums, add_sums
from engine.compat import moe_layers
from engine.config import Config, KlConfig
from engine.placement import free_port
from engine.records import InvariantError
from engine.sync.link import LinkKind, open_link
from engine.sync.transfer import WeightManifest, WeightSender
from engine.train import collate, passes
from engine.train.balance import form_micro_batches
from engine.train.checkpoint import Trained, load_checkpoint, save_checkpoint
from engine.train.collate import Get, MicroBatch, RoutingShape
from engine.train.critic import Critic
from engine.train.device import ModelFlops, Moment, explained, peak_flops
from engine.train.layout import Layout
from engine.train.model import ModelOptions, PolicyModel, load_causal_lm, shard_policy
from engine.train.optimizer import build_adamw, learning_rate_scale, set_learning_rate, update
from engine.train.packing import Packing
from engine.train.plan import Measured, TraceTensors, TrainerSpec, TrainOrder, TrainReport
from engine.train.replay import RoutingReplay
from engine.train.weights import gathered_weights, save_hf, weight_shapes

SAMPLER_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


@dataclass
class _Batch:
    """What accumulates while one batch is trained."""

    device: torch.device
    phases: list[tuple[str, Moment, Moment]] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)
    traces: list[TraceTensors] = field(default_factory=list)
    grad_norms: list[torch.Tensor] = field(default_factory=list)
    critic_grad_norms: list[torch.Tensor] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = Moment(self.device)
        with explained(phase):
            yield
        self.phases.append((phase, started, Moment(self.device)))

    def seconds(self) -> dict[str, float]:
        """Of each phase; waits for the device."""
        total = {"load": 0.0, "forward_backward": 0.0, "optim": 0.0}
        for phase, started, ended in self.phases:
            total[phase] += ended.seconds_since(started)
        return total


@dataclass
class KlControl:
    """The KL of a run: its settings, the coefficient of now, and the sums that `measure` left for the next `train`."""

    settings: KlConfig
    rollouts: int
    coef: float
    measured: Sums = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Self:
        settings = KlConfig(init_coef=1.0, estimator="k1") if config.distills else config.algo.kl
        return cls(settings, config.rollouts_per_batch, settings.init_coef)

    @property
    def to_rollout(self) -> bool:
        return self.settings.ref == "rollout"

    def step(self, kl: float | None) -> dict[str, float]:
        """Adapt after a batch with this mean KL; returns the metric of the coefficient that was used, if there is one.

        A KL that is not finite adapts nothing: its batch changed no weight either.
        """
        if not self.coef:
            return {}
        used = {"loss/kl_coef": self.coef}
        if self.settings.target is not None and kl is not None and math.isfinite(kl):
            self.coef = adapted_coef(self.coef, kl, self.settings.target, self.rollouts, self.settings.horizon)
        return used


class Trainer:
    """`get` resolves a list of payload references to their list[Rollout]; None: ray.get."""

    def __init__(self, get: Get | None = None) -> None:
        self._get = get
        self._sender: WeightSender | None = None

    def free_address(self) -> tuple[str, int]:
        """This process's own address and a free port there, for a rendezvous of the ranks or with the engines."""
        host = _own_address() if self._get is None else "127.0.0.1"
        return host, free_port(host)

    @explained("starting")
    def setup(self, spec: TrainerSpec) -> dict[str, Any]:
        """Join the ranks' process group, load and shard the model; returns facts about it. Call before anything else."""
        self.spec, self.config = spec, spec.config
        self._use_machine(spec)
        self.device = torch.device(spec.device)
        _join_ranks(spec)
        self.layout = layout = Layout.of(self.device.type, self.config.fsdp)
        self.split = layout.cp if self.config.fsdp.packing_samples else None
        options = ModelOptions.of(self.config, spec.device)
        causal_lm = load_causal_lm(spec.model_path, layout, options)
        self.model_config = causal_lm.config
        parameters = sum(p.numel() for p in causal_lm.parameters())
        self.policy = shard_policy(causal_lm, layout, options)
        self.routing_shape = self._attach_routing()
        self.reference = self._load_reference(options)
        self.kl = KlControl.of(self.config)
        self.critic = self._load_critic(options)
        self.optimizer = build_adamw(self.policy.parameters(), self.config.actor.adam, options.offload == "optimizer")
        self.step = 0
        self.live: dict[str, Any] = {}
        self._learning_rate()  # a schedule that lacks its end is refused now, not at the first batch
        return {
            "parameters": parameters,
            "vocab_size": self.model_config.vocab_size,
            "num_layers": self.model_config.num_hidden_layers,
            "moe_layers": self.routing_shape.layer_ids if self.routing_shape else [],
        }

    def _load_reference(self, options: ModelOptions) -> PolicyModel | None:
        """The frozen reference or teacher; its routers follow the sampler too, where they have the policy's shape."""
        if self.spec.reference_path is None:
            return None
        options = replace(options, gradient_checkpoint="none")
        causal_lm = load_causal_lm(self.spec.reference_path, self.layout, options).requires_grad_(False).eval()
        reference, policy = causal_lm.config.vocab_size, self.model_config.vocab_size
        if reference != policy:
            raise ValueError(f"ref.model_name_or_path has {reference} token ids, the policy {policy}: use a model with the same "
                             "tokenizer")  # fmt: skip
        model = shard_policy(causal_lm, self.layout, options)
        layers = moe_layers(causal_lm)
        if layers and collate.routing_shape(layers) == self.routing_shape:
            model.routing = RoutingReplay(layers, self.config.train.routing_replay)
        return model

    def _load_critic(self, options: ModelOptions) -> Critic | None:
        config = self.config
        if config.algo.advantage.estimator != "gae":
            return None
        return Critic(self.spec.model_path, self.layout, options, config.critic, config.train.routing_replay)

    def _use_machine(self, spec: TrainerSpec) -> None:
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
            torch.set_num_threads(len(spec.cores))
        seed = self.config.train.seed + spec.rank
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    def _attach_routing(self) -> RoutingShape | None:
        layers, replay = moe_layers(self.policy.lm), self.config.train.routing_replay
        self.flops = ModelFlops.of(self.policy.lm, layers)
        if not layers:
            if replay:
                raise ValueError("train.routing_replay needs a MoE model whose router is known: set it to false")
            return None
        if self.config.actor.freeze_moe_router:
            for layer in layers:
                layer.router.requires_grad_(False)
        self.policy.routing = RoutingReplay(layers, replay)
        return collate.routing_shape(layers)

    # Training

    @explained("measure")
    def measure(self, order: TrainOrder) -> dict[int, Measured]:
        """Token rewards and values of this rank's samples, for `batch.set_advantages`; of one rank of those that share them.

        All ranks call it with the same order, before `train`.
        """
        self.kl.measured = {}
        found: dict[int, Measured] = {}
        for batch in [b for step in self._load(order) for b in step]:
            rewards_BT = self._token_rewards(batch) if self.config.token_rewards else None
            values_BT = self.critic.values(batch) if self.critic else None
            for row, sample in enumerate(batch.samples):
                parts = [
                    None if tensor_BT is None else tensor_BT[row][batch.sampled_BT[row]].cpu().numpy()
                    for tensor_BT in (rewards_BT, values_BT)
                ]
                found[sample] = Measured(*parts)
        return found if self.layout.leads else {}

    def _token_rewards(self, batch: MicroBatch) -> torch.Tensor:
        """-coefficient * KL to the reference, (B, T) at the sampled tokens."""
        sampled_BT = batch.sampled_BT
        logprobs_BT = passes.replayed_logprobs(self.policy, batch, sampled_BT)
        reference_BT = batch.rollout_logprobs_BT
        if not self.kl.to_rollout and self.reference is not None:
            reference_BT = passes.replayed_logprobs(self.reference, batch, sampled_BT)
        kl_BT = kl_estimate(logprobs_BT, reference_BT, self.kl.settings.estimator, self.kl.to_rollout)
        self.kl.measured = add_sums(self.kl.measured, kl_sums(kl_BT, batch.mask_BT))
        return -self.kl.coef * kl_BT

    def train(self, order: TrainOrder) -> TrainReport:
        """Train on one batch: one or more optimizer steps. Raises InvariantError before anything is changed."""
        self.set_live(order.live)
        state = _Batch(self.device)
        if not order.optimizer_steps:
            self.step += 1
            return TrainReport({"optim/skipped": 1.0}, state.seconds(), stepped=False)
        with state.timed("load"):
            steps = self._load(order)
            state.sums = passes.staleness_sums([b for step in steps for b in step], order.max_staleness) | self.kl.measured
            self.kl.measured = {}
            self._check_tokens(order, steps)
        active = [i for i, step in enumerate(order.optimizer_steps) if step.tokens > 0]
        lr = self._learning_rate()
        set_learning_rate(self.optimizer, lr)
        with state.timed("forward_backward"):
            old = self._old_logprobs([steps[i] for i in active])
        for k, i in enumerate(active):
            settings = passes.PassSettings(self._policy_settings(), order.optimizer_steps[i], self.layout.layers.size())
            self._optimizer_step(steps[i], old[k], settings, order, state)
        self.step += 1
        if self.device.type == "cuda":
            state.sums["memory/peak_max"] = torch.tensor(torch.cuda.max_memory_allocated(), dtype=torch.float64)
        sums = passes.reduce_sums(state.sums, self.device, self.layout.copies)
        seconds, grad_norms = state.seconds(), [float(norm) for norm in state.grad_norms]
        metrics = passes.finish_metrics(sums) | {"optim/skipped": float(not np.isfinite(grad_norms).any())}
        metrics |= self._efficiency(order, sums, seconds["forward_backward"])
        metrics |= self.kl.step(metrics.get("loss/kl"))
        if active:
            metrics |= {"optim/grad_norm": float(np.mean(grad_norms)), "optim/lr": lr}
        if state.critic_grad_norms:
            metrics["optim/critic_grad_norm"] = float(torch.stack(state.critic_grad_norms).mean())
        return TrainReport(metrics, seconds, stepped=bool(active), traces=state.traces if self.layout.leads else [])

    def _efficiency(self, order: TrainOrder, sums: Sums, seconds: float) -> dict[str, float]:
        """perf/* of the trainer; absent where the device is not known."""
        found = {}
        if "memory/peak_max" in sums:
            found["perf/gpu_mem_peak_gb"] = float(sums["memory/peak_max"]) / 2**30
            torch.cuda.reset_peak_memory_stats()
        if (peak := peak_flops()) and seconds and self.config.fsdp.param_dtype == "bf16":
            found["perf/mfu"] = self.flops.training(s.length for s in order.samples) / (seconds * self.spec.world * peak)
        return found

    def _load(self, order: TrainOrder) -> list[list[MicroBatch]]:
        rank, get = self.layout.data_rank, self._get or _ray_get
        segments = collate.resolve_segments(order, collate.samples_of(order, rank), get, self.model_config.vocab_size)
        make = partial(collate.collate, segments=segments, order=order, routing=self.routing_shape, device=self.device,
                       border=self.config.train.routing_replay_border, split=self.split)  # fmt: skip
        return [[make(samples) for samples in step.micro_batches[rank]] for step in order.optimizer_steps]

    def _check_tokens(self, order: TrainOrder, steps: list[list[MicroBatch]]) -> None:
        """The denominators come from the order; they must be what the ranks will really train."""
        counted = torch.tensor([sum(len(b.staleness) for b in step) for step in steps], device=self.device)
        dist.all_reduce(counted)
        ordered, found = [step.tokens for step in order.optimizer_steps], (counted // self.layout.copies).tolist()
        if found != ordered:
            raise InvariantError(f"the order counts {ordered} tokens to train, the records have {found}")

    def _old_logprobs(self, steps: list[list[MicroBatch]]) -> list[list[torch.Tensor | None]]:
        """The policy before the batch; None where the training pass itself computes it: with a single optimizer step."""
        if len(steps) <= 1:
            return [[None] * len(step) for step in steps]
        return [[passes.replayed_logprobs(self.policy, b, b.mask_BT) for b in step] for step in steps]

    def _optimizer_step(
        self, batches: list[MicroBatch], old: list[torch.Tensor | None], settings: passes.PassSettings, order: TrainOrder,
        state: _Batch,
    ) -> None:  # fmt: skip
        # A single rank has nobody to gather from: the weights it computes with are cast once, not twice in every pass.
        keeps = self.spec.world == 1 and self.config.fsdp.offload != "full"
        if keeps:
            self.policy.set_reshard_after_forward(False)
        with state.timed("forward_backward"):
            for index, (batch, old_BT) in enumerate(zip(batches, old, strict=True)):
                last = index == len(batches) - 1
                self.policy.set_requires_gradient_sync(last)
                self.policy.set_reshard_after_backward(last or not keeps)
                rows = collate.traced_rows(order, batch)
                reference_BT = None
                if self.reference is not None and settings.policy.kl_coef and not settings.policy.kl_to_rollout:
                    reference_BT = passes.replayed_logprobs(self.reference, batch, batch.mask_BT)
                if self.critic:
                    counts = settings.denominators(batch)
                    state.sums = add_sums(state.sums, self.critic.train_pass(batch, order, counts, settings.ranks, last))
                sums, traces = passes.train_pass(self.policy, batch, old_BT, settings, rows, reference_BT)
                state.sums = add_sums(state.sums, sums)
                state.traces += traces
        if keeps:
            self.policy.set_reshard_after_forward(True)
        with state.timed("optim"):
            state.grad_norms.append(update(self.optimizer, self.policy.parameters(), self.config.actor.max_norm))
            if self.critic:
                state.critic_grad_norms.append(self.critic.step(self.config.actor.max_norm, self._learning_rate_scale()))

    def _learning_rate_scale(self) -> float:
        actor = self.config.actor
        return learning_rate_scale(
            self.step, self.spec.total_steps, shape=actor.lr_scheduler, warmup_ratio=actor.lr_warmup_ratio,
            min_ratio=actor.min_lr_ratio,
        )  # fmt: skip

    def _learning_rate(self) -> float:
        return self.live.get("actor.adam.lr", self.config.actor.adam.lr) * self._learning_rate_scale()

    def _policy_settings(self) -> PolicySettings:
        settings = policy_settings(self.config, self.live.get("algo.advantage.is_correction_threshold"))
        kl = self.kl
        in_loss = kl.coef * kl.settings.use_loss
        return replace(settings, kl_coef=in_loss, kl_estimator=kl.settings.estimator, kl_to_rollout=kl.to_rollout)

    def set_live(self, knobs: dict[str, Any]) -> None:
        """Take over live settings; names of others than the trainer's are ignored."""
        self.live |= knobs

    @explained("probe")
    def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Log-prob of each token after the first at temperature 1, without replay: float32 (len - 1,) per sequence.

        All ranks must call it with the same sequences.
        """
        scores: dict[int, np.ndarray] = {}
        for rows in form_micro_batches(range(len(sequences)), [len(s) for s in sequences], self.config.train.max_tokens_per_gpu):
            ids_BT, wanted_BT = collate.pad_sequences([sequences[r] for r in rows], self.device)
            packing = None
            if self.split is not None:
                packing = Packing.of([len(sequences[r]) for r in rows], ids_BT.shape[1], self.device, self.split)
            logprobs_BT = passes.logprob_pass(self.policy, ids_BT, wanted_BT, packing=packing).cpu().numpy()
            scores |= {r: logprobs_BT[i, 1 : len(sequences[r])] for i, r in enumerate(rows)}
        return [scores[r] for r in range(len(sequences))]

    # Weights for the sampler

    def weight_manifest(self) -> WeightManifest:
        """Names, dtypes and shapes of a publication, as vLLM's load_weights takes them."""
        names, shapes = map(list, zip(*weight_shapes(self.policy.lm), strict=True))
        return WeightManifest(names, [self.config.vllm.dtype] * len(names), shapes)

    def init_transfer(self, host: str, port: int, world: int, kind: LinkKind = "gloo") -> None:
        """Open the group of this rank and `world` - 1 engine workers; returns when all have joined."""
        self._sender = WeightSender(open_link(kind, host, port, 0, world, str(self.device)), self.weight_manifest())

    @explained("weight_sync")
    def prepare_weights(self) -> None:
        """Gather the full tensors in the sampler's dtype and pack them. All ranks call it; the engines may go on sampling."""
        gathered = gathered_weights(self.policy.lm, SAMPLER_DTYPES[self.config.vllm.dtype])
        if self._sender is not None:
            self._sender.pack(gathered)
        else:
            collections.deque(gathered, maxlen=0)  # takes part in the gathering

    def send_weights(self) -> None:
        """Send what `prepare_weights` packed; a rank without engines has nothing to do."""
        if self._sender is not None:
            self._sender.send()

    # Checkpoints

    def _trained(self) -> Trained:
        actor: Trained = {"actor": (self.policy, self.optimizer)}
        return actor | ({"critic": (self.critic.model, self.critic.optimizer)} if self.critic else {})

    def save(self, path: str, controller_state: bytes = b"", hf: bool = False) -> None:
        """Write one checkpoint directory; it is complete when all ranks have returned."""
        export = (lambda folder: self.save_hf(str(folder / "hf"))) if hf else None
        state = {"step": self.step, "live": self.live, "kl_coef": self.kl.coef}
        save_checkpoint(Path(path), self._trained(), state, controller_state, export)

    def load(self, path: str) -> bytes:
        """Restore a complete checkpoint and return the controller's state. Raises CheckpointError."""
        state, controller_state = load_checkpoint(Path(path), self._trained())
        self.step, self.live, self.kl.coef = state["step"], state["live"], state["kl_coef"]
        return controller_state

    def save_hf(self, folder: str) -> None:
        """Export the weights in the sampler's dtype as a model directory for transformers and vLLM."""
        dtype = SAMPLER_DTYPES[self.config.vllm.dtype]
        save_hf(self.policy.lm, self.spec.model_path, Path(folder), dtype, writer=self.spec.rank == 0)


def policy_settings(config: Config, live_threshold: tuple[float, ...] | None = None) -> PolicySettings:
    """The objective's settings from the configuration; a single threshold is an upper bound."""
    actor, advantage = config.actor, config.algo.advantage
    threshold = live_threshold or advantage.is_correction_threshold
    low, high = threshold if len(threshold) == 2 else (-float("inf"), threshold[0])
    rule = CorrectionRule(advantage.is_correction_level, advantage.is_correction_mode, advantage.is_correction_gating, low, high)
    clip = (*actor.eps_clip_low_high, actor.dual_clip)
    return PolicySettings(actor.loss_mode, *clip, actor.loss_agg_mode, actor.entropy_coef, correction=rule)


def _join_ranks(spec: TrainerSpec) -> None:
    """The default process group of the ranks; a group that this process already has is used when it fits."""
    if dist.is_initialized():
        if dist.get_world_size() != spec.world:
            raise RuntimeError(f"this process is one of {dist.get_world_size()} ranks, the order was for {spec.world}")
        return
    store = dist.TCPStore(spec.host, spec.port, spec.world, is_master=spec.rank == 0)
    backend = "cpu:gloo,cuda:nccl" if spec.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=spec.rank, world_size=spec.world)


def _own_address() -> str:
    import ray

    return ray.util.get_node_ip_address()


def _ray_get(references: list[Any]) -> list[Any]:
    import ray

    return ray.get(references)
