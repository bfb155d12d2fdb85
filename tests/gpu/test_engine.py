"""The real vLLM on a GPU: publications as copies, and an engine that sleeps with requests in flight."""

import asyncio

import pytest
import pytest_asyncio
import torch

from engine.config import Config
from engine.placement import free_port
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.rollout.transport import GenerateRequest, Sampling
from engine.sync.link import open_link
from engine.sync.transfer import WeightManifest, WeightSender
from engine.train.weights import gathered_weights, weight_shapes

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.asyncio(loop_scope="module"),
]


def random_model(seed):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=130, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, mlp_only_layers=[1],
        max_position_embeddings=1024, eos_token_id=None, pad_token_id=0, bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    return model.eval()


class Rig:
    """An engine and the trainer's end of its link: on the same GPU, or for an engine of two GPUs through host memory."""

    @classmethod
    async def start(cls, folder, gpus=1):
        rig, model = cls(), random_model(0)
        model.to(torch.bfloat16).save_pretrained(folder)
        rig.engine = VllmEngine()
        config = Config(data={"max_len": 768}, placement={"colocate": gpus == 1}, vllm={
            "max_num_seqs": 64, "enforce_eager": True, "kv_cache_gb": 6.0, "tensor_parallel_size": gpus})  # fmt: skip
        await rig.engine.start(EngineSpec(str(folder), config, "cuda", return_routed_experts=True))
        shapes = weight_shapes(model)
        rig.manifest = WeightManifest([n for n, _ in shapes], ["bfloat16"] * len(shapes), [s for _, s in shapes], 1 << 20)
        port, kind = free_port(), "ipc" if gpus == 1 else "gloo"
        opening = asyncio.to_thread(open_link, kind, "127.0.0.1", port, 0, 1 + gpus, "cuda:0")
        link, _ = await asyncio.gather(opening, rig.engine.init_transfer("127.0.0.1", port, 1, 1 + gpus, kind))
        rig.sender = WeightSender(link, rig.manifest)
        return rig

    async def send(self, seed, receive):
        self.sender.pack(gathered_weights(random_model(seed), torch.bfloat16))
        answer, _ = await asyncio.gather(receive, asyncio.to_thread(self.sender.send))
        return answer

    async def publish(self, seed):
        await self.engine.pause()
        await self.send(seed, self.engine.update_weights(self.manifest, self.engine.version + 1))
        await self.engine.resume()
        return await self.engine._rpc("digest")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory):
    rig = await Rig.start(tmp_path_factory.mktemp("moe"))
    yield rig
    await rig.engine.shutdown()


async def test_copies_leave_the_weights_that_vllms_loaders_leave(rig):
    loaded = [await rig.publish(seed) for seed in (1, 2)]
    assert loaded[0] != loaded[1]
    assert await rig.send(2, rig.engine.learn_copies(rig.manifest)) == ""
    assert [await rig.publish(seed) for seed in (1, 2)] == loaded


async def test_copies_are_refused_while_the_engine_holds_other_weights(rig):
    await rig.publish(1)
    assert "layout" in await rig.send(2, rig.engine.learn_copies(rig.manifest))
    assert await rig.send(1, rig.engine.learn_copies(rig.manifest)) == ""


async def test_a_sleeping_engine_gives_its_memory_back_and_keeps_its_requests(rig):
    requests = [GenerateRequest(f"s{i}", "e", [5 + i] * 8, Sampling(max_tokens=500)) for i in range(16)]
    running = [asyncio.create_task(rig.engine.generate(request)) for request in requests]
    while (await rig.engine.stats()).tokens < 16 * 20:
        await asyncio.sleep(0.01)
    awake = torch.cuda.mem_get_info()[0]
    await rig.engine.sleep()
    assert torch.cuda.mem_get_info()[0] - awake > 5 * 2**30
    version = rig.engine.version
    await rig.send(2, rig.engine.update_weights(rig.manifest, version + 1))
    await rig.engine.resume()
    results = await asyncio.wait_for(asyncio.gather(*running), 120)
    for result in results:
        assert len(result.token_ids) == 500 and set(result.versions) == {version, version + 1}
        assert result.versions == sorted(result.versions)
        assert len(result.routed_experts) == 8 + 500 - 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
async def test_an_engine_of_two_gpus_copies_the_shards_that_its_loaders_cut(tmp_path):
    rig = await Rig.start(tmp_path, gpus=2)
    try:
        loaded = [await rig.publish(seed) for seed in (1, 2)]
        assert loaded[0] != loaded[1] and loaded[0][0] != loaded[0][1]
        assert await rig.send(2, rig.engine.learn_copies(rig.manifest)) == ""
        assert [await rig.publish(seed) for seed in (1, 2)] == loaded
    finally:
        await rig.engine.shutdown()
