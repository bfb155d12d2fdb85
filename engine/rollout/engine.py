"""The sampler: vLLM's AsyncLLM with exact policy versions, token ids in and token ids out. Works bare and as a Ray actor.

Versions: every token received up to the moment `pause` returned was sampled by the old version; `update_weights` draws that
border through every request in flight. Requests ask vLLM for their final output only, which is the cheapest on a shared
core; the number of tokens at a border is read from vLLM's own per-request state.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine import compat
from engine.config import Config
from engine.rollout.mailbox import MailboxHost
from engine.rollout.transport import EngineDead, EngineStats, GenerateRequest, GenerateResult
from engine.sync.link import LinkKind
from engine.timers import Level

PING_SECONDS = 10.0


@dataclass
class EngineSpec:
    """How one engine is started. `cores`: CPU cores its process and threads may use, None for no pinning."""

    model_path: str
    config: Config
    device: str = "cpu"
    return_routed_experts: bool = False
    cores: list[int] | None = None
    index: int = 0
    hang_timeout_s: float = 300.0


@dataclass
class _Flight:
    """A request in flight. `borders`: (tokens received so far, version of the ones that follow), in order."""

    version: int
    borders: list[tuple[int, int]] = field(default_factory=list)


def stamp_versions(count: int, first: int, borders: list[tuple[int, int]]) -> list[int]:
    """The version of each of `count` tokens: `first`, then from each border (tokens before it, version) on that version."""
    versions = [first] * count
    for start, version in borders:
        versions[start:] = [version] * (count - min(start, count))
    return versions


class VllmEngine(MailboxHost):
    """One engine; `tests/scripted.py` has the same calls without a model.

    Methods raise EngineDead when the core process has ended, does not answer, or holds half an update.
    """

    def __init__(self) -> None:
        compat.import_vllm()  # here and not in start: seconds that pass while the model is still being prepared
        self.version = 0
        self._llm: Any = None
        self._flights: dict[str, _Flight] = {}
        self._finished_tokens = 0
        self._paused = False
        self._updating = False
        self._death = ""
        self._busy = Level()
        self._pause_preemptions = 0
        self._scores = 0
        self._asleep: set[str] = set()
        self._manifest: Any = None

    async def start(self, spec: EngineSpec) -> dict[str, Any]:
        """Start vLLM and wait until it samples. Returns facts: routed_layers (global layer ids of the axis L of
        routed_experts), worker_pids."""
        self.spec, vllm = spec, spec.config.vllm
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)  # of this thread, which the core process inherits
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        variables = compat.vllm_environment(spec.device, vllm.tensor_parallel_size, spec.cores, vllm.enforce_eager)
        with compat.environment(variables | offline):
            self._llm = compat.start_async_llm(engine_arguments(spec))
        # The imports leave so many objects that each full collection would stop sampling for a third of a second.
        gc.collect()
        gc.freeze()
        self._steps = compat.StepStats.attach(self._llm)
        self._stop_ids = stop_token_ids(spec.model_path, self._llm.model_config.hf_config)
        self._max_len = self._llm.model_config.max_model_len
        self._layers = (await self._rpc("moe_layer_ids"))[0] if spec.return_routed_experts else []
        self._watch = asyncio.create_task(self._watch_core())
        return {"routed_layers": self._layers, "worker_pids": await self._rpc("process_id")}

    # Sampling

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one turn. ValueError: the request is impossible. While the engine is paused the request waits.

        routed_experts is int16 (prompt + sampled - 1 - routed_from, L, k), no rows when nothing was sampled; vLLM reports
        a row for every decoder layer, of which those in routed_layers are kept.
        """
        self._check_alive()
        if request.request_id in self._flights:
            raise ValueError(f"request {request.request_id} is already in flight")
        with compat.plain_vllm_errors():
            params = self._sampling_params(request)
        flight = self._flights[request.request_id] = _Flight(self.version)
        self._count()
        try:
            final = await self._final_output(request.token_ids, params, request.request_id)
        finally:
            del self._flights[request.request_id]
            self._count()
        self._finished_tokens += len(final.outputs[0].token_ids)
        return self._result(request, final, flight)

    async def _final_output(self, token_ids: list[int], params: Any, request_id: str) -> Any:
        final = None
        try:
            with compat.plain_vllm_errors():
                async for output in self._llm.generate(compat.token_prompt(token_ids), params, request_id):
                    final = output
        except EngineDead as death:
            raise EngineDead(self._say_dead(str(death))) from None
        if final is None:
            raise EngineDead(self._say_dead("vLLM ended a request without output"))
        return final

    def _sampling_params(self, request: GenerateRequest) -> Any:
        """Every field that shapes the distribution, explicitly, so that no generation_config can."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling, prompt = request.sampling, len(request.token_ids)
        room = self._max_len - prompt
        if prompt == 0 or room <= 0:
            raise ValueError(f"a prompt of {prompt} tokens does not fit: the engine takes 1 to {self._max_len - 1}")
        if not 0 <= request.routed_from <= prompt:
            raise ValueError(f"routed_from {request.routed_from} lies outside the prompt of {prompt} tokens")
        if sampling.seed is not None and self.spec.device == "cpu":
            # The core would end at the first prompt that is prefilled in parts: its CPU generator cannot be turned back.
            raise ValueError("vLLM takes no seed of single requests on CPU: leave it out of sampling_params")
        if sampling.stop and self._llm.tokenizer is None:
            raise ValueError("stop strings need a tokenizer in the model directory")
        return SamplingParams(
            n=1, temperature=sampling.temperature, top_p=sampling.top_p, top_k=0, min_p=0.0, presence_penalty=0.0,
            frequency_penalty=0.0, repetition_penalty=1.0, min_tokens=0, seed=sampling.seed,
            max_tokens=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            stop=list(sampling.stop) or None, stop_token_ids=self._stop_ids, detokenize=bool(sampling.stop),
            logprobs=0, flat_logprobs=True, routed_experts_prompt_start=request.routed_from,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip

    def _result(self, request: GenerateRequest, final: Any, flight: _Flight) -> GenerateResult:
        output = final.outputs[0]
        token_ids, logprobs = list(output.token_ids), list(output.logprobs.logprobs)
        if output.finish_reason not in ("stop", "length", "abort") or len(logprobs) != len(token_ids):
            raise RuntimeError(
                f"vLLM returned finish_reason {output.finish_reason} with {len(token_ids)} tokens, {len(logprobs)} log-probs"
            )
        routed = self._routed_experts(request, len(token_ids), output.routed_experts) if self._layers else None
        versions = stamp_versions(len(token_ids), flight.version, flight.borders)
        return GenerateResult(token_ids, logprobs, versions, output.finish_reason, routed, self.spec.index)

    def _routed_experts(self, request: GenerateRequest, sampled: int, captured: np.ndarray | None) -> np.ndarray:
        """Rows of the layers in routed_layers. Raises RuntimeError when vLLM left some out."""
        expected = len(request.token_ids) + sampled - 1 - request.routed_from if sampled else 0
        if captured is None:
            captured = np.zeros((0, self._layers[-1] + 1, 1), np.int16)
        if len(captured) != expected:
            raise RuntimeError(f"vLLM returned {len(captured)} routing rows, {expected} were due")
        return captured[:, self._layers].astype(np.int16)

    async def abort(self, request_ids: list[str]) -> None:
        """End these requests: generate returns what they have with finish_reason "abort". Unknown ids are ignored."""
        self._check_alive()
        await self._call("abort", self._llm.abort([i for i in request_ids if i in self._flights]))

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Log-prob of each token after the first, at temperature 1 and by prefill: float32 (len - 1,) per sequence."""
        self._check_alive()
        if self._paused:
            raise RuntimeError("score would wait for ever on a paused engine: call resume first")
        return await asyncio.gather(*[self._score(s) for s in sequences])

    async def _score(self, token_ids: list[int]) -> np.ndarray:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False, ignore_eos=True,
            skip_reading_prefix_cache=True, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        self._scores += 1
        final = await self._final_output(token_ids, params, f"score-{self._scores}")
        return np.asarray(final.prompt_logprobs.logprobs, np.float32)

    # Weights

    async def init_transfer(self, host: str, port: int, rank: int, world: int, kind: LinkKind = "gloo") -> None:
        """Join the weight-transfer group; `rank` is that of this engine's first worker. Returns when all have joined."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        where = {"kind": kind, "host": host, "port": port, "rank": rank, "world": world}
        await self._call("join", self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=where)))

    async def learn_copies(self, manifest: Any) -> str:
        """While the trainer sends the weights that the engine already holds: learn to take publications as plain copies.

        Returns why that is impossible, or nothing; publications then go through vLLM's loaders, which is slower.
        """
        answers = await self._rpc("learn_copies", vars(manifest))
        self._manifest = manifest
        reason = next((answer for answer in answers if answer), "")
        if reason:
            await self._rpc("forget_copies")
        return reason

    async def sleep(self) -> None:
        """Pause and hand the GPU memory back, keeping the requests; `update_weights` and `resume` take it again."""
        await self.pause()
        await self._call("sleep", self._llm.sleep(1, mode="keep"))
        self._asleep = {"weights", "kv_cache"}

    async def _wake(self, tags: set[str]) -> None:
        """Take back the memory of `tags` where it was handed back."""
        if due := self._asleep & tags:
            await self._call("wake", self._llm.wake_up(sorted(due)))
            self._asleep -= due

    async def pause(self) -> int:
        """Stop sampling, keep the requests; returns how many are held. Version borders are exact afterwards."""
        self._check_alive()
        if not self._paused:
            self._paused = True
            self._busy.set(False)
            await self._call("pause", compat.pause(self._llm))
            await self._call("drain", compat.drain_outputs(self._llm))
            # The pause itself preempts what runs, which is no sign of a full KV cache.
            self._pause_preemptions += self._steps.running.level
            self._count()
        return len(self._flights)

    async def update_weights(self, manifest: Any, version: int) -> None:
        """Receive and load one publication while paused; afterwards the engine is at `version`.

        A failure leaves the weights undefined: the engine ends itself.
        """
        self._check_alive()
        if not self._paused:
            raise RuntimeError("update_weights on a sampling engine would blur version borders: call pause first")
        if version < self.version:
            raise ValueError(f"version {version} is older than the engine's {self.version}")
        await self._wake({"weights"})
        news, self._manifest = {} if manifest == self._manifest else vars(manifest), manifest
        self._updating = True
        try:
            await self._rpc("receive_weights", news)
        except EngineDead:
            raise
        except Exception as error:
            message = self._say_dead(f"a weight update failed half-way: {error}")
            await self.shutdown()
            raise EngineDead(message) from None
        finally:
            self._updating = False
        self._turn_to(version)

    def _turn_to(self, version: int) -> None:
        """Draw the border through every request that is not finished yet."""
        for request_id, flight in self._flights.items():
            received = compat.tokens_so_far(self._llm, request_id)
            if received is not None:
                flight.borders.append((received, version))
        self.version = version

    async def resume(self) -> None:
        self._check_alive()
        if self._paused:
            await self._wake({"weights", "kv_cache"})
            await self._call("resume", self._llm.resume_generation())
            self._paused = False
            self._count()

    async def digest(self) -> tuple[int, float, float]:
        """(count, sum, sum of squares) of the parameters of the first worker; see WorkerExtension.digest."""
        return tuple((await self._rpc("digest"))[0])

    # State

    def _count(self) -> None:
        """After a change of what is in flight or of the pause, in which the core reports nothing and all requests wait."""
        self._busy.set(bool(self._flights) and not self._paused)
        if self._paused:
            self._steps.running.set(0)
            self._steps.waiting.set(len(self._flights))

    async def stats(self) -> EngineStats:
        """Preemptions by pauses are left out; `tokens` counts those of requests in flight too."""
        self._check_alive()
        steps = self._steps
        in_flight = sum(compat.tokens_so_far(self._llm, i) or 0 for i in self._flights)
        return EngineStats(
            running_s=steps.running.integral(),
            waiting_s=steps.waiting.integral(),
            kv_s=steps.kv_frac.integral(),
            preemptions=max(0, steps.preemptions - int(self._pause_preemptions)),
            version=self.version,
            tokens=self._finished_tokens + in_flight,
            busy_s=self._busy.integral(),
        )

    async def shutdown(self) -> None:
        """End the core process; requests in flight fail with EngineDead. May be called again."""
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        self._death = self._death or "it was shut down"
        if asyncio.current_task() is not self._watch:
            self._watch.cancel()
        compat.fail_requests(llm)
        await asyncio.to_thread(llm.shutdown, 0)  # a core holds nothing to save; its own ending takes 7 s

    async def _rpc(self, method: str, *args: Any) -> list[Any]:
        """One answer per worker."""
        self._check_alive()
        return await self._call(method, self._llm.collective_rpc(method, args=args))

    async def _call(self, what: str, call: Awaitable[Any], timeout: float | None = None) -> Any:
        """Await a call to the core; a core that ends would leave it unanswered, so its end is awaited beside it."""
        task = asyncio.ensure_future(call)
        ends = {task, self._llm.output_handler}
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not task.done():
                task.cancel()
                raise EngineDead(f"its core did not answer to '{what}'")
            with compat.plain_vllm_errors():
                return task.result()
        except EngineDead as death:
            raise EngineDead(self._say_dead(str(death))) from None

    async def _watch_core(self) -> None:
        """End the engine when it has work and its core answers nothing for hang_timeout_s."""
        while True:
            await asyncio.sleep(min(PING_SECONDS, self.spec.hang_timeout_s))
            if self._flights and not self._updating:
                try:
                    await self._call("a ping", self._llm.is_paused(), timeout=self.spec.hang_timeout_s)
                except EngineDead:
                    await self.shutdown()
                    return

    def _say_dead(self, reason: str) -> str:
        """The first reason stays: later ones follow from it."""
        self._death = self._death or reason
        return f"engine {self.spec.index}: {self._death}"

    def _check_alive(self) -> None:
        if self._llm is None or self._death:
            raise EngineDead(f"engine {self.spec.index}: {self._death}")


def engine_arguments(spec: EngineSpec) -> dict[str, Any]:
    """AsyncEngineArgs fields for this spec; what it leaves empty is vLLM's choice."""
    config, vllm = spec.config, spec.config.vllm
    cache_gb = vllm.kv_cache_gb or (1.0 if spec.device == "cpu" else None)
    arguments: dict[str, Any] = {
        "model": spec.model_path,
        "max_model_len": config.data.max_len,
        "seed": config.train.seed + spec.index,
        "enable_return_routed_experts": spec.return_routed_experts,
        "skip_tokenizer_init": not has_tokenizer(spec.model_path),
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "engine.sync.worker.WorkerExtension",
        "weight_transfer_config": {"backend": "molt"},
        "enable_sleep_mode": config.placement.colocate,
        "kv_cache_memory_bytes": cache_gb and int(cache_gb * 2**30),
    }
    if spec.device == "cpu" and vllm.tensor_parallel_size == 1:
        arguments["distributed_executor_backend"] = "uni"
    return arguments | vllm.model_dump(exclude={"num_engines", "kv_cache_gb"}, exclude_none=True)


def has_tokenizer(model_path: str) -> bool:
    """Whether vLLM can load a tokenizer from the model's directory."""
    return any(Path(model_path, name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))


def stop_token_ids(model_path: str, config: Any) -> list[int]:
    """End-of-sequence ids of the model and of its generation config, which has more of them for chat models."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        generation = None
    found = [config.eos_token_id, generation]
    ids = {i for entry in found if entry is not None for i in (entry if isinstance(entry, list) else [entry])}
    return sorted(ids)
