"""The engine's own actors with what the bench measures inside them."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import torch
import torch._dynamo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine import compat
from engine.algo.mismatch import finish_gap, gap_sums
from engine.algo.sums import Sums, add_sums
from engine.rollout.engine import VllmEngine
from engine.rollout.transport import GenerateRequest, Sampling
from engine.train.actor import Trainer
from engine.train.model import ModelOptions, load_causal_lm, shard_layers
from engine.train.packing import use_packed_attention
from engine.train.passes import logprob_pass, replayed_logprobs
from engine.train.plan import TrainerSpec, TrainOrder


def clock() -> float:
    """Now, with everything done that the GPU was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class BenchEngine(VllmEngine):
    async def bare(self, prompts: list[list[int]], max_tokens: int, tag: str) -> tuple[float, int]:
        """The prompts sampled by AsyncLLM itself, all at once, with the parameters of our requests: (seconds, tokens)."""
        params = self._sampling_params(GenerateRequest("p", "p", prompts[0], Sampling(max_tokens=max_tokens)))

        async def one(index: int, ids: list[int]) -> int:
            final: Any = None
            async for output in self._llm.generate(compat.token_prompt(ids), params, f"bare-{tag}-{index}"):
                final = output
            return len(final.outputs[0].token_ids)

        started = time.perf_counter()
        counts = await asyncio.gather(*[one(i, ids) for i, ids in enumerate(prompts)])
        return time.perf_counter() - started, sum(counts)


class BenchTrainer(Trainer):
    def setup(self, spec: TrainerSpec) -> dict[str, Any]:
        torch._dynamo.config.disable = True  # AutoModel would tune its expert activation for 16 s
        return super().setup(spec)

    def gaps(self, order: TrainOrder) -> dict[str, float]:
        """Sampler against trainer on the tokens of the order: with the sampler's experts, and with the live ones."""
        sums: dict[str, Sums] = {"replayed": {}, "live": {}}
        for batch in [b for step in self._load(order) for b in step]:
            found = {
                "replayed": replayed_logprobs(self.policy, batch, batch.mask_BT),
                "live": logprob_pass(self.policy, batch.input_ids_BT, batch.mask_BT, batch.temperatures_BT, batch.packing),
            }
            for name, logprobs_BT in found.items():
                sums[name] = add_sums(sums[name], gap_sums(logprobs_BT, batch.rollout_logprobs_BT, batch.mask_BT))
        return {f"{name}_{key}": value for name in sums for key, value in finish_gap(sums[name]).items()}

    def timed_train(self, order: TrainOrder, kind: str) -> tuple[float, dict[str, Any]]:
        """Seconds of one step over the order, and its metrics: with routing `replay`, with `no_routing` at all, or as a
        `bare_loop`."""
        if kind == "bare_loop":
            return self._bare_loop(order), {}
        kept = self.policy.routing, self.routing_shape
        if kind == "no_routing":
            self.policy.routing = self.routing_shape = None
        started = clock()
        report = self.train(order)
        ended = clock()
        self.policy.routing, self.routing_shape = kept
        return ended - started, report.metrics

    def _bare_loop(self, order: TrainOrder) -> float:
        """The least loop over the same micro-batches: the same model class and sharding, whole log-probs, a policy gradient."""
        if not hasattr(self, "_bare"):
            mesh = init_device_mesh(self.device.type, (1,), mesh_dim_names=("dp",))
            options = ModelOptions.of(self.config, self.spec.device)
            self._bare = load_causal_lm(self.spec.model_path, mesh, options)
            if not any(isinstance(module, FSDPModule) for module in self._bare.modules()):
                shard_layers(mesh, options, self._bare)
            dtype = torch.bfloat16 if self.config.fsdp.param_dtype == "bf16" else torch.float32
            precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
            fully_shard(self._bare, mesh=mesh, mp_policy=precision)
            self._bare_attention = use_packed_attention(self._bare) if self.config.fsdp.packing_samples else None
            self._bare_optimizer = torch.optim.AdamW(self._bare.parameters(), lr=0.0, fused=True)
        started = clock()
        batches = [b for step in self._load(order) for b in step]
        for index, batch in enumerate(batches):
            self._bare.set_requires_gradient_sync(index == len(batches) - 1)
            kept_N = batch.mask_BT[:, 1:].flatten().nonzero().squeeze(1)
            inputs_BT, positions, packing = batch.input_ids_BT[:, :-1], {}, batch.packing
            if packing is not None and self._bare_attention is not None:
                self._bare_attention.packing = packing
                inputs_BT, kept_N = inputs_BT.flatten()[packing.kept_N][None], packing.kept_N
                positions = {"position_ids": packing.positions_1N}
            output = self._bare(input_ids=inputs_BT, use_cache=False, **positions)
            logits_NV = (output if isinstance(output, torch.Tensor) else output.logits).flatten(0, 1).float()
            if packing is None:
                logits_NV = logits_NV[kept_N]
            targets_N, sampled_N, advantages_N, temperatures_N, mask_N = (
                x_BT[:, 1:].flatten()[kept_N]
                for x_BT in (
                    batch.input_ids_BT, batch.rollout_logprobs_BT, batch.advantages_BT, batch.temperatures_BT, batch.mask_BT,
                )
            )  # fmt: skip
            logprobs_NV = (logits_NV / temperatures_N[:, None]).log_softmax(-1)
            logprobs_N = logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1)
            (-((logprobs_N - sampled_N).exp() * advantages_N * mask_N).sum() / mask_N.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self._bare.parameters(), 1.0)
        self._bare_optimizer.step()
        self._bare_optimizer.zero_grad()
        return clock() - started

    def forget_bare_loop(self) -> None:
        """Free its model and what it has cached, so that memory is that of a run again."""
        del self._bare, self._bare_optimizer
        gc.collect()
        torch.cuda.empty_cache()
