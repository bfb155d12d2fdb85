"""Contracts of the parts of vLLM that the sampler relies on; no core is started."""

import asyncio
import dataclasses
import inspect
from types import SimpleNamespace

import pytest

from engine import compat
from engine.config import Config
from engine.rollout.engine import EngineSpec, engine_arguments
from engine.rollout.transport import EngineDead


@pytest.fixture(scope="module")
def vllm():
    return pytest.importorskip("vllm", reason="vLLM is not installed")


def test_engine_arguments_exist(vllm):
    from vllm.engine.arg_utils import AsyncEngineArgs

    spec = EngineSpec("model", Config(vllm={"enable_chunked_prefill": True, "max_num_batched_tokens": 64}))
    assert set(engine_arguments(spec)) <= {f.name for f in dataclasses.fields(AsyncEngineArgs)}


def test_async_llm_has_the_calls_of_a_weight_update(vllm):
    from vllm.v1.engine.async_llm import AsyncLLM

    for name, needed in {
        "generate": {"prompt", "sampling_params", "request_id"},
        "abort": {"request_id"},
        "resume_generation": set(),
        "is_paused": set(),
        "init_weight_transfer_engine": {"request"},
        "sleep": set(),
        "wake_up": set(),
        "collective_rpc": {"method"},
        "shutdown": {"timeout"},
    }.items():
        parameters = inspect.signature(getattr(AsyncLLM, name)).parameters
        assert needed <= set(parameters), name
        optional = (
            p.default is not p.empty or p.kind is p.VAR_KEYWORD for n, p in parameters.items() if n not in needed | {"self"}
        )
        assert all(optional), name


def test_the_core_client_pauses_with_the_requests_kept(vllm):
    from vllm.v1.engine.core_client import AsyncMPClient

    assert {"mode", "clear_cache"} <= set(inspect.signature(AsyncMPClient.pause_scheduler_async).parameters)


def core_outputs(**fields):
    return SimpleNamespace(**{"outputs": [], "timestamp": 0.0, "engine_index": 0, "scheduler_stats": None, **fields})


class RecordingProcessor:
    def __init__(self):
        self.processed = []

    def process_outputs(self, outputs, timestamp, iteration_stats):
        self.processed += outputs
        return SimpleNamespace(request_outputs=[], reqs_to_abort=[])

    def update_scheduler_stats(self, stats):
        pass


async def test_a_drain_returns_when_vllms_output_handler_has_processed_all_that_came_before(vllm):
    from vllm.v1.engine.async_llm import AsyncLLM

    queue = asyncio.Queue()
    llm = SimpleNamespace(
        output_handler=None, log_stats=True, output_processor=RecordingProcessor(),
        logger_manager=SimpleNamespace(record=lambda **_: None),
        engine_core=SimpleNamespace(outputs_queue=queue, get_output_async=queue.get),
        renderer=SimpleNamespace(mm_processor_cache=None, stat_mm_cache=lambda: None),
    )  # fmt: skip
    for step in range(3):
        queue.put_nowait(core_outputs(outputs=[(step, i) for i in range(300)]))
    AsyncLLM._run_output_handler(llm)
    await asyncio.wait_for(compat.drain_outputs(llm), 10)
    assert llm.output_processor.processed == [(step, i) for step in range(3) for i in range(300)]
    llm.output_handler.cancel()


@pytest.fixture
def in_flight(vllm):
    """An AsyncLLM's front-end state with one request "r", and that request's output queue."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

    processor = OutputProcessor(None, log_stats=False)
    params = SamplingParams(logprobs=0, flat_logprobs=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
    fields = dict.fromkeys(EngineCoreRequest.__struct_fields__) | {"request_id": "r-1", "external_req_id": "r"}
    fields |= {"prompt_token_ids": [1, 2], "sampling_params": params, "arrival_time": 0.0}
    queue = RequestOutputCollector(params.output_kind, "r-1")
    processor.add_request(EngineCoreRequest(**fields), None, queue=queue)
    return SimpleNamespace(output_processor=processor), queue


def test_tokens_so_far_follows_vllms_request_state(in_flight):
    from vllm.v1.engine import EngineCoreOutput

    llm, queue = in_flight
    assert compat.tokens_so_far(llm, "r") == 0
    for received in (1, 2):
        llm.output_processor.process_outputs([EngineCoreOutput(request_id="r-1", new_token_ids=[7])])
        assert compat.tokens_so_far(llm, "r") == received
    assert queue.get_nowait() is None
    llm.output_processor.abort_requests(["r"], internal=False)
    assert compat.tokens_so_far(llm, "r") is None
    assert queue.get_nowait().outputs[0].token_ids == [7, 7]


def test_failed_requests_raise_where_their_output_is_awaited(in_flight):
    llm, queue = in_flight
    compat.fail_requests(llm)
    with pytest.raises(EngineDead, match="core has ended"), compat.plain_vllm_errors():
        queue.get_nowait()


def test_step_stats_read_vllms_records(vllm):
    from vllm.v1.metrics.loggers import StatLoggerManager
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    llm = SimpleNamespace(logger_manager=StatLoggerManager.__new__(StatLoggerManager))
    stats = compat.StepStats.attach(llm)
    step = IterationStats()
    step.num_preempted_reqs = 2
    reported = SchedulerStats(num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.25)
    llm.logger_manager.record(scheduler_stats=reported, iteration_stats=step, engine_idx=0)
    assert (stats.running.level, stats.waiting.level, stats.kv_frac.level, stats.preemptions) == (3, 1, 0.25, 2)


def test_the_weight_transfer_backend_registers_once_and_is_complete(vllm):
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from engine.sync import worker

    compat.register_weight_transfer(worker.BACKEND, worker.BucketTransfer)
    assert WeightTransferEngineFactory._registry[worker.BACKEND]() is worker.BucketTransfer
    assert not worker.BucketTransfer.__abstractmethods__


def test_layerwise_reload_keeps_the_counts_that_tell_what_was_loaded(vllm):
    import torch
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.ReLU())
    assert compat.unloaded_modules(model) == []
    for module, loaded in zip(model, (0, 4)):
        info = get_layerwise_info(module)
        info.load_numel_total, info.load_numel = 6, loaded
    assert compat.unloaded_modules(model) == ["0"]
