"""The real vLLM core against transformers and against itself: weights, version borders, routing, aborts, a dead core."""

import asyncio
import os
import signal
import string
import time

import numpy as np
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.config import Config
from engine.placement import free_port
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.rollout.transport import EngineDead, GenerateRequest, GenerateResult, Sampling
from engine.sync.link import Link
from engine.sync.transfer import WeightManifest, WeightSender
from engine.train.weights import gathered_weights, weight_shapes

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = ["<pad>", "<eos>", *string.ascii_lowercase, *string.digits, "="]
EOS, A, B = 1, VOCABULARY.index("a"), VOCABULARY.index("b")
SHAPE = {
    "vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
    "eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
# Layer 1 is dense, so that the routed layers are not simply 0, 1, ...
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1]}


def random_model(moe: bool, seed: int):
    """A tiny model whose next-token distribution is far from flat, so that wrong weights show."""
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS)) if moe else Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    return model.eval()


def only(token: int, seed: int):
    """A MoE model that samples `token` alone: every position has the same hidden state and only this row points along it."""
    model = random_model(True, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[token] = 1.0
    return model


class Rig:
    """An engine and the trainer's end of its transfer link."""

    def __init__(self, engine: VllmEngine, sender: WeightSender, manifest: WeightManifest, facts: dict):
        self.engine, self.sender, self.manifest, self.facts = engine, sender, manifest, facts
        self.requests = 0

    @classmethod
    async def start(cls, folder, moe: bool) -> "Rig":
        model = random_model(moe, seed=0)
        model.save_pretrained(folder)
        engine = VllmEngine()
        vllm = {"dtype": "float32", "kv_cache_gb": 0.25, "enforce_eager": True, "enable_prefix_caching": not moe}
        config = Config(data={"max_len": 128}, vllm=vllm)
        facts = await engine.start(EngineSpec(str(folder), config, return_routed_experts=moe, hang_timeout_s=5.0))
        shapes = weight_shapes(model)
        manifest = WeightManifest([n for n, _ in shapes], ["float32"] * len(shapes), [s for _, s in shapes], 1 << 16)
        port = free_port()
        joined = asyncio.to_thread(Link, "127.0.0.1", port, 0, 2)
        link, _ = await asyncio.gather(joined, engine.init_transfer("127.0.0.1", port, 1, 2))
        return cls(engine, WeightSender(link, manifest), manifest, facts)

    async def publish(self, model) -> None:
        await self.engine.pause()
        self.sender.pack(gathered_weights(model, torch.float32))
        update = self.engine.update_weights(self.manifest, self.engine.version + 1)
        await asyncio.gather(update, asyncio.to_thread(self.sender.send))
        await self.engine.resume()

    def generate(self, prompt: list[int], **sampling) -> asyncio.Task:
        self.requests += 1
        routed_from = sampling.pop("routed_from", 0)
        request = GenerateRequest(f"r{self.requests}", "e", prompt, Sampling(**sampling), routed_from)
        return asyncio.create_task(self.engine.generate(request), name=request.request_id)

    async def until_tokens(self, count: int) -> None:
        while (await self.engine.stats()).tokens < count:
            await asyncio.sleep(0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="<pad>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)
    rig = await Rig.start(folder, moe=False)
    yield rig
    await rig.engine.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def moe(tmp_path_factory):
    rig = await Rig.start(tmp_path_factory.mktemp("moe"), moe=True)
    yield rig
    await rig.engine.shutdown()


SEQUENCES = [[2, 3, 4, 5, 6, 7], [9] * 30, [11, 2, 13], list(range(2, 38))]


@torch.no_grad()
def reference_scores(model) -> list[np.ndarray]:
    scores = []
    for sequence in SEQUENCES:
        ids_T = torch.tensor(sequence)
        logprobs_TV = model(input_ids=ids_T[None]).logits[0].log_softmax(-1)
        scores.append(logprobs_TV[:-1].gather(-1, ids_T[1:, None])[:, 0].numpy())
    return scores


@pytest.mark.parametrize("kind", ["dense", "moe"])
async def test_after_each_update_the_sampler_computes_the_trainers_logprobs(kind, dense, moe):
    rig = {"dense": dense, "moe": moe}[kind]
    for seed in (1, 2, 3):
        model = random_model(kind == "moe", seed)
        await rig.publish(model)
        scores, expected = await rig.engine.score(SEQUENCES), reference_scores(model)
        assert max(np.abs(a - b).max() for a, b in zip(scores, expected, strict=True)) < 1e-5
        assert all(s.dtype == np.float32 for s in scores)


async def test_sampled_tokens_carry_their_logprob_after_temperature(dense):
    model = random_model(False, seed=4)
    await dense.publish(model)
    prompt = [2, 3, 4]
    result = await dense.generate(prompt, temperature=0.7, max_tokens=20)
    ids_T = torch.tensor(prompt + result.token_ids)
    with torch.no_grad():
        logprobs_TV = (model(input_ids=ids_T[None]).logits[0] / 0.7).log_softmax(-1)
    expected = logprobs_TV[:-1].gather(-1, ids_T[1:, None])[2:, 0].numpy()
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-5)
    assert result.routed_experts is None
    assert result.finish_reason == ("stop" if result.token_ids[-1] == EOS else "length")


async def test_version_borders_match_the_text_over_200_rollouts(moe):
    weights = [only(A, seed=0), only(B, seed=1)]
    await moe.publish(weights[0])
    first = moe.engine.version
    before = (await moe.engine.stats()).tokens
    length = 90
    tasks = [moe.generate([2 + i % 30] * (1 + i % 9), max_tokens=length) for i in range(200)]
    for update, share in ((1, 0.2), (2, 0.4), (3, 0.7)):
        await moe.until_tokens(before + int(share * 200 * length))
        await moe.publish(weights[update % 2])
    results = await asyncio.gather(*tasks)
    for result in results:
        assert len(result.token_ids) == length
        assert sorted(set(result.versions)) == list(range(first, first + 4))
        assert result.token_ids == [(A, B)[(v - first) % 2] for v in result.versions]


async def test_routing_rows_are_complete_across_a_pause_and_start_where_asked(moe):
    await moe.publish(random_model(True, seed=5))
    assert moe.facts["routed_layers"] == [0, 2]
    before = (await moe.engine.stats()).tokens
    prompts = [[2 + i] * (3 + i) for i in range(8)]
    tasks = [moe.generate(p, max_tokens=60, routed_from=i % 4, temperature=2.0) for i, p in enumerate(prompts)]
    await moe.until_tokens(before + 100)
    await moe.publish(random_model(True, seed=6))
    for i, result in enumerate(await asyncio.gather(*tasks)):
        routed = result.routed_experts
        assert routed.shape == (len(prompts[i]) + len(result.token_ids) - 1 - i % 4, 2, 2)
        assert routed.dtype == np.int16 and routed.min() >= 0 and routed.max() < 8
        assert (routed[..., 0] != routed[..., 1]).all()


async def test_an_abort_returns_the_tokens_so_far_with_their_rows(moe):
    await moe.publish(only(A, seed=0))
    before = (await moe.engine.stats()).tokens
    task, other = moe.generate([2, 3, 4], max_tokens=120), moe.generate([5], max_tokens=120)
    await moe.until_tokens(before + 20)
    held = await moe.engine.pause()
    await moe.engine.abort([task.get_name(), "unknown"])
    result = await task
    await moe.engine.resume()
    assert held == 2 and result.finish_reason == "abort" and 0 < len(result.token_ids) < 120
    assert set(result.token_ids) == {A} and len(result.logprobs) == len(result.versions) == len(result.token_ids)
    assert len(result.routed_experts) == 3 + len(result.token_ids) - 1
    assert (await other).finish_reason == "length"


async def test_statistics_count_what_happened(moe):
    before = await moe.engine.stats()
    results = await asyncio.gather(*[moe.generate([3, 4], max_tokens=10) for _ in range(5)])
    after = await moe.engine.stats()
    assert after.tokens - before.tokens == sum(len(r.token_ids) for r in results)
    busy = after.busy_s - before.busy_s
    assert 0 < after.running_s - before.running_s <= 5 * busy and 0 <= after.waiting_s - before.waiting_s <= 5 * busy
    assert after.version == moe.engine.version and after.preemptions == 0 and 0.0 < after.kv_s - before.kv_s <= busy
    idle = await moe.engine.stats()
    assert (idle.running_s, idle.waiting_s) == (after.running_s, after.waiting_s), "nothing runs: nothing is added"


async def test_requests_held_by_a_pause_wait(moe):
    task = moe.generate([2, 3], max_tokens=120)
    await moe.until_tokens((await moe.engine.stats()).tokens + 10)
    await moe.engine.pause()
    before, started = await moe.engine.stats(), time.perf_counter()
    late = moe.generate([4], max_tokens=2)
    await asyncio.sleep(0.2)
    after, seconds = await moe.engine.stats(), time.perf_counter() - started
    await moe.engine.resume()
    await asyncio.gather(task, late)
    assert after.running_s == before.running_s and after.busy_s == before.busy_s
    assert 1.5 * seconds < after.waiting_s - before.waiting_s <= 2 * seconds + 0.01


async def test_misuse_is_refused_with_what_to_do(moe, dense):
    with pytest.raises(ValueError, match="does not fit"):
        await moe.generate([2] * 128)
    with pytest.raises(ValueError, match="temperature") as refused:
        await moe.generate([2], temperature=5.0)
    assert type(refused.value) is ValueError
    with pytest.raises(ValueError, match="no seed of single requests"):
        await moe.generate([2], seed=1)
    with pytest.raises(ValueError, match="tokenizer"):
        await moe.generate([2], stop=("ab",))
    with pytest.raises(RuntimeError, match="call pause first"):
        await dense.engine.update_weights(dense.manifest, 99)


async def test_stop_strings_end_a_turn_where_a_tokenizer_is(dense):
    model = random_model(False, seed=7)
    await dense.publish(model)
    free = await dense.generate([2, 3], temperature=0.0, max_tokens=40)
    text = "".join(VOCABULARY[t] for t in free.token_ids)
    stopped = await dense.generate([2, 3], temperature=0.0, max_tokens=40, stop=(text[4:7],))
    end = text.index(text[4:7]) + 3
    assert stopped.token_ids == free.token_ids[:end] and stopped.finish_reason == "stop"


async def test_a_dead_core_fails_requests_and_calls_at_once(dense):
    before = (await dense.engine.stats()).tokens
    tasks = [dense.generate([2, 3], max_tokens=120, temperature=2.0) for _ in range(32)]
    await dense.until_tokens(before + 32)
    os.kill(dense.facts["worker_pids"][0], signal.SIGKILL)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(e, EngineDead) for e in ends) > 0
    assert all(isinstance(e, EngineDead | GenerateResult) for e in ends)
    with pytest.raises(EngineDead, match="engine 0"):
        await dense.engine.pause()


async def test_a_core_that_hangs_is_found_and_ended(moe):
    await moe.publish(only(A, seed=0))
    moe.engine.spec.hang_timeout_s = 1.0
    before = (await moe.engine.stats()).tokens
    task = moe.generate([2, 3], max_tokens=120)
    await moe.until_tokens(before + 1)
    os.kill(moe.facts["worker_pids"][0], signal.SIGSTOP)
    with pytest.raises(EngineDead, match="did not answer"):
        await task
    with pytest.raises(EngineDead, match="did not answer"):
        await moe.engine.stats()
