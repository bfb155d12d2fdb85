"""The engine's own actors with what the bench measures inside them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch._dynamo

from engine import compat
from engine.algo.mismatch import finish_gap, gap_sums
from engine.algo.sums import Sums, add_sums
from engine.rollout.engine import VllmEngine
from engine.rollout.transport import GenerateRequest, Sampling
from engine.train.actor import Trainer
from engine.train.passes import logprob_pass, replayed_logprobs
from engine.train.plan import TrainerSpec, TrainOrder


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
