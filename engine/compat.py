"""The only place that touches private or version-dependent API; every entry has a contract test."""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import nn

from engine import compat_automodel
from engine.compat_automodel import Choose
from engine.rollout.transport import EngineDead
from engine.timers import Level


@dataclass
class MoeLayer:
    """One MoE layer of a model of transformers or AutoModel.

    layer_id  index among all decoder layers, dense ones included
    experts   called with the ids (N, k) of its tokens as positional argument `ids_argument`
    replace   replace(choose): from now on choose(live ids (N, k)) gives the ids of every forward pass of the router; their
              weights are computed anew from the live logits
    """

    layer_id: int
    router: nn.Module
    experts: nn.Module
    top_k: int
    num_experts: int
    ids_argument: int
    replace: Callable[[Choose], None]


def _softmax_top_k_weights(router: nn.Module, logits_NE: torch.Tensor, ids_Nk: torch.Tensor) -> torch.Tensor:
    weights_Nk = torch.softmax(logits_NE, dim=-1, dtype=torch.float32).gather(-1, ids_Nk)
    return weights_Nk / weights_Nk.sum(-1, keepdim=True) if router.norm_topk_prob else weights_Nk


# Routers of transformers return (logits (N, E), weights (N, k), ids (N, k)); how each weighs its own choice.
_ROUTERS = {"Qwen3MoeTopKRouter": _softmax_top_k_weights}


def _replace_by_hook(router: nn.Module, choose: Choose) -> None:
    weigh = _ROUTERS[type(router).__name__]

    def hook(_router: nn.Module, _inputs: tuple, output: tuple) -> tuple | None:
        logits_NE, weights_Nk, live_Nk = output
        ids_Nk = choose(live_Nk)
        return None if ids_Nk is live_Nk else (logits_NE, weigh(router, logits_NE, ids_Nk).to(weights_Nk.dtype), ids_Nk)

    router.register_forward_hook(hook)


def moe_layers(model: nn.Module) -> list[MoeLayer]:
    """The MoE layers of a model in layer order; empty for dense models and for routers not known here."""
    layers = []
    routers = [(name, module) for name, module in model.named_modules() if type(module).__name__ in _ROUTERS]
    for name, router in [*routers, *compat_automodel.gates(model)]:
        position = re.search(r"\blayers\.(\d+)\.", name)
        if position is None:
            continue
        of_transformers = type(router).__name__ in _ROUTERS
        top_k, num_experts = (router.top_k, router.num_experts) if of_transformers else (router.topk, router.n_experts)
        replace = partial(_replace_by_hook if of_transformers else compat_automodel.replace_choice, router)
        experts = model.get_submodule(name.rpartition(".")[0]).experts
        layers.append(MoeLayer(int(position.group(1)), router, experts, top_k, num_experts, 1 if of_transformers else 3, replace))
    return layers


# torch.distributed: groups outside the default one, so that a process can be in several worlds


def gloo_group(host: str, port: int, rank: int, world: int, timeout_s: float) -> Any:
    """A gloo process group that rendezvous at host:port, which rank 0 serves; blocks until all members are there."""
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    # Named by address: the look-up of the own host name fails on machines that are in no name service.
    options._devices = [ProcessGroupGloo.create_device(hostname=_address_towards(host, port))]
    return ProcessGroupGloo(_rendezvous(host, port, rank, world, timeout_s), rank, world, options)


def nccl_group(host: str, port: int, rank: int, world: int, timeout_s: float) -> Any:
    """As gloo_group, over NCCL; the communicator is built by the first collective, on the current device."""
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroupNCCL(_rendezvous(host, port, rank, world, timeout_s), rank, world, options)


def _rendezvous(host: str, port: int, rank: int, world: int, timeout_s: float) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(host, port, world, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    return PrefixStore("weights", store)


def _address_towards(host: str, port: int) -> str:
    """The address of this machine that `host` sees. Sends nothing: a UDP connect only picks the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]


def broadcast(group: Any, tensor: torch.Tensor) -> Any:
    """Start to broadcast rank 0's tensor in place. The work's `wait` raises RuntimeError on a time-out or a lost peer; on
    CUDA it makes the current stream wait, not the caller."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.asyncOp = True  # on CUDA: on NCCL's own stream, beside the current one
    return group.broadcast([tensor], options)


def fused_copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """targets[i].copy_(sources[i]) for all i, in few kernels."""
    if targets:
        torch._foreach_copy_(targets, sources)


def ipc_handle(tensor: torch.Tensor) -> Any:
    """What lets another process map a CUDA tensor of this one; picklable. The tensor has to outlive its use there."""
    from torch.multiprocessing.reductions import reduce_tensor

    return reduce_tensor(tensor)


def open_ipc_handle(handle: Any) -> torch.Tensor:
    rebuild, arguments = handle
    return rebuild(*arguments)


# vLLM, in the process that holds AsyncLLM


def environment(values: dict[str, str]) -> AbstractContextManager[Any]:
    """Run with these environment variables; afterwards the whole environment is as before.

    vLLM adds variables of its own while it starts a core (LD_PRELOAD among them), which later children must not inherit.
    """
    return patch.dict(os.environ, values)


_QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}


def import_vllm() -> None:
    """Import what start_async_llm needs, some 7 s of CPU; the log settings take effect with the first import."""
    with environment(_QUIET):
        import vllm.v1.engine.async_llm  # noqa: F401


def start_async_llm(arguments: dict[str, Any]) -> Any:
    """An AsyncLLM with these engine arguments; blocks until its core is ready."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def vllm_environment(device: str, tensor_parallel_size: int, cores: list[int] | None, eager: bool) -> dict[str, str]:
    """Environment of an engine's core process. `cores`: the CPU cores its threads may use; None leaves it half of them."""
    values = {**_QUIET, "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "TOKENIZERS_PARALLELISM": "false"}
    if device == "cuda":
        # The second runner of the supported releases does not report the experts' choice.
        return values | {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    ranks = tensor_parallel_size
    values["OMP_NUM_THREADS"] = str(max(1, (len(cores) if cores else (os.cpu_count() or 1) // 2) // ranks))
    values["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if ranks == 1:
        # Lets the core run the model itself: no worker process of its own to start and to talk to.
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if eager:
        # vLLM compiles small sampler functions even in eager mode: 20 s once per machine, and it needs a C++ compiler.
        values["TORCH_COMPILE_DISABLE"] = "1"
    return values


def token_prompt(token_ids: list[int]) -> dict[str, Any]:
    """A prompt that vLLM takes as already rendered; a plain TokensPrompt would go through its thread pool."""
    return {"type": "token", "prompt_token_ids": token_ids}


@contextmanager
def plain_vllm_errors() -> Iterator[None]:
    """Raise ValueError, EngineDead and RuntimeError for vLLM's own types: those would make any receiver import vLLM."""
    from vllm.exceptions import VLLMValidationError  # a ValueError in 0.26, no longer in 0.30
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except (ValueError, VLLMValidationError) as error:
        raise ValueError(str(error)) from None
    except EngineDeadError:
        raise EngineDead("its vLLM core has ended; the log of the engine's process says why") from None
    except EngineGenerateError as error:
        raise RuntimeError(f"vLLM failed a request: {error.__cause__!r}") from None


class _OutputBarrier:
    """Stands in vLLM's output queue; the output handler reads `scheduler_stats` when everything before is processed."""

    outputs: tuple[()] = ()
    timestamp = 0.0
    engine_index = 0

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    @property
    def scheduler_stats(self) -> None:
        self.reached.set()


async def pause(llm: Any) -> None:
    """Hold all requests and drop what is cached; their outputs may still be on the way. AsyncLLM's own call sleeps 20 ms more."""
    await llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=True)


async def drain_outputs(llm: Any) -> None:
    """Return when every output that has arrived from the core has reached its request.

    A core answers a pause after the outputs of its last step and on the same socket, so that after the answer and this
    drain the per-request token counts are exactly what was sampled before the pause.
    """
    barrier = _OutputBarrier()
    llm.engine_core.outputs_queue.put_nowait(barrier)
    await barrier.reached.wait()


def tokens_so_far(llm: Any, request_id: str) -> int | None:
    """Tokens received for a request in flight; None when it has finished and only its answer is still to be taken."""
    processor = llm.output_processor
    internal = processor.external_req_ids.get(request_id)
    return processor.request_states[internal[0]].detokenizer.num_output_tokens() if internal else None


def fail_requests(llm: Any) -> None:
    """End every request in flight with vLLM's dead-engine error, which its shutdown forgets to do."""
    from vllm.v1.engine.exceptions import EngineDeadError

    llm.output_processor.propagate_error(EngineDeadError())


class StepStats:
    """What the core reports after each step, in the place of vLLM's own stat loggers."""

    def __init__(self) -> None:
        self.running, self.waiting, self.kv_frac, self.preemptions = Level(), Level(), Level(), 0

    @classmethod
    def attach(cls, llm: Any) -> Self:
        """Replace the stat loggers of an AsyncLLM that was started with statistics on."""
        stats = cls()
        llm.logger_manager.stat_loggers = [stats]
        return stats

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        if scheduler_stats is not None:
            self.running.set(scheduler_stats.num_running_reqs)
            self.waiting.set(scheduler_stats.num_waiting_reqs + getattr(scheduler_stats, "num_skipped_waiting_reqs", 0))
            self.kv_frac.set(scheduler_stats.kv_cache_usage)
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """vLLM calls it; the controller knows when it lets an engine sleep."""


# vLLM, in the worker that holds the model


def begin_weight_reload(model: nn.Module) -> None:
    """Make a running vLLM model ready for load_weights: its kernels may have repacked and freed the loaded tensors."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    # The CPU build packs expert weights only while it builds the kernel; with a kernel it would silently keep the old ones.
    if next(model.parameters()).device.type == "cpu":
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None
    # It warns of every module that nothing was loaded into, rotary embeddings among them: see unloaded_modules.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    initialize_layerwise_reload(model)


def unloaded_modules(model: nn.Module) -> list[str]:
    """Modules with parameters of which load_weights has set none since begin_weight_reload."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    # load_numel_total is None once a module is complete; modules without parameters hold buffers only.
    states = ((name, get_layerwise_info(module)) for name, module in model.named_modules() if module._parameters)
    return [name for name, state in states if state.load_numel_total and not state.load_numel]


def end_weight_reload(model: nn.Module, model_config: Any) -> None:
    """Repack what was loaded since begin_weight_reload, in the storage the kernels hold."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    finalize_layerwise_reload(model, model_config)


def register_weight_transfer(name: str, cls: type) -> None:
    """Register a weight-transfer engine with vLLM; again is no error, as workers may share a process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(name, cls)


def vllm_moe_layer_ids(model: nn.Module) -> list[int]:
    """Ids among all decoder layers of the layers whose expert choice vLLM captures, in order; empty for dense models."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return sorted({module.layer_id for module in model.modules() if isinstance(module, MoERunner)})
