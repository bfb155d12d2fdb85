"""Routing replay where it is hard: one real vLLM with prefix caching, chunked prefill and a KV cache that is too small.

Sampler and trainer compute in fp32 with the same weights, so a routing row at the wrong token would show as a router that
chose otherwise. The learning rate is 0: gradients are computed, the weights stay.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.batch import prepare
from engine.compat import moe_layers
from engine.config import Config
from engine.records import Rollout, Segment
from engine.rollout.engine import EngineSpec, VllmEngine
from engine.rollout.pool import Batch
from engine.rollout.router import Router
from engine.rollout.runner import AgentRunnerActor, RunnerSpec
from engine.rollout.transport import FinishedGroup, GroupSpec, Prompt, Sampling
from engine.sync.publish import publish
from engine.train.actor import Trainer
from engine.train.plan import TraceTensors, TrainerSpec
from engine.train.tiny import build_tokenizer
from tests.real_parts import Call

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_LEN, BUDGET = 256, 48
AGENT = """
from engine.agents import Env, Result, StepEnvRunner
from engine.agents.tokens import SegmentBuilder
from engine.records import Rollout

TURNS = {"single": 1, "turns": 3}


class Talk(Env):
    async def reset(self, state, **kwargs):
        self.left = TURNS[state["metadata"]["kind"]]
        return state

    async def step(self, state, **kwargs):
        self.left -= 1
        return Result(reward=float(len(state["action_text"]) % 2), observation=" go on: " * 2, terminated=not self.left)


class AgentRunner(StepEnvRunner):
    def __init__(self):
        super().__init__(Talk)

    async def execute(self, episode):
        if episode.prompt.metadata["kind"] != "segments":
            return await super().execute(episode)
        segments, ids = [], await episode.codec.encode_prompt(episode.prompt.prompt)
        for turn in range(2):
            segment = SegmentBuilder(ids[turn * 20:])
            await episode.sample(segment, episode.sampling, turn)
            segments.append(segment.build())
        return Rollout(episode.rollout_id, episode.prompt.prompt_id, segments, reward=float(len(segments[0]) % 2), turns=2)
"""


def build_model(folder) -> str:
    """Dense first layer, three MoE layers, routers that are far from indifferent."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=MAX_LEN, tie_word_embeddings=False, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, mlp_only_layers=[0], bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    ))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def config(border: str) -> Config:
    return Config.model_validate({
        "actor": {"adam": {"lr": 0.0}, "gradient_checkpoint": "full", "max_norm": 1e9}, "fsdp": {"param_dtype": "fp32"},
        "vllm": {"dtype": "float32"}, "data": {"max_len": MAX_LEN}, "trace": {"rollouts_per_step": 0},
        "rollout": {"batch_size": 8, "n_samples_per_prompt": 4},
        "algo": {"advantage": {"estimator": "rloo", "is_correction_level": "token"}},
        "train": {"routing_replay": True, "routing_replay_border": border, "max_tokens_per_gpu": 1024},
    })  # fmt: skip


@dataclass
class Outcome:
    """Metrics of one training step, the gradient norm of each router by layer, and log-probs and mismatch by sample."""

    metrics: dict
    router_gradients: dict[int, float]
    traces: dict[int, TraceTensors]


@dataclass
class Rig:
    engine: VllmEngine
    runner: AgentRunnerActor
    trainers: dict[str, Trainer]  # by border
    version: int = 0
    groups: int = 0

    async def sample(self, kind: str, max_tokens: int = 60) -> list[FinishedGroup]:
        """Eight groups of four rollouts, all at once; none may get lost."""
        self.groups += 1
        specs = []
        for g in range(8):
            name = f"{self.groups}.{g}"
            prompt = Prompt(name, f"{g} tell a story of {'many words ' * (3 + g % 4)}", metadata={"kind": kind})
            specs.append(GroupSpec(name, prompt, 4, Sampling(max_tokens=max_tokens)))
        found = await asyncio.gather(*[self.runner.run_group(s) for s in specs])
        assert all(len(g.rollouts) == 4 and not g.errors for g in found), [g.errors for g in found]
        return found

    def train(self, groups: list[FinishedGroup], border: str = "both") -> Outcome:
        trainer, gradients = self.trainers[border], {}

        def note(*_) -> None:
            gradients.update({la.layer_id: float(la.router.weight.grad.norm()) for la in moe_layers(trainer.policy.lm)})

        hook = trainer.optimizer.register_step_pre_hook(note)
        order = prepare(Batch(self.version, groups, {}), 1, trainer.config).order
        for sample in order.samples:
            sample.trace = True
        report = trainer.train(order)
        hook.remove()
        return Outcome(report.metrics, gradients, {t.sample: t for t in report.traces})

    async def turn_routers_round(self) -> None:
        """Publish weights with which every router prefers what it liked least."""
        with torch.no_grad():
            for trainer in self.trainers.values():
                for layer in moe_layers(trainer.policy.lm):
                    layer.router.weight.neg_()
        both = self.trainers["both"]
        self.version += 1
        await publish([Call(both)], [self.engine], both.weight_manifest(), self.version)

    async def preemptions(self) -> int:
        return (await self.engine.stats()).preemptions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("replay")
    model = build_model(folder / "model")
    (folder / "talk_agent.py").write_text(AGENT)
    engine, router, runner = VllmEngine(), Router(), AgentRunnerActor()
    vllm = {"dtype": "float32", "max_num_seqs": 32, "max_num_batched_tokens": BUDGET, "enable_chunked_prefill": True,
            "enable_prefix_caching": True, "kv_cache_gb": 0.004, "enforce_eager": True}  # fmt: skip
    sampling = Config(data={"max_len": MAX_LEN}, vllm=vllm)
    facts = await engine.start(EngineSpec(model, sampling, return_routed_experts=True))
    assert facts["routed_layers"] == [1, 2, 3]
    await router.start([engine])
    await runner.start(RunnerSpec(str(folder / "talk_agent.py"), model, sampling), router, lambda records: records)
    trainers = {border: Trainer(get=lambda refs: refs) for border in ("both", "new")}
    for border, trainer in trainers.items():
        assert trainer.setup(TrainerSpec(config(border), model))["moe_layers"] == [1, 2, 3]
    host, port = trainers["both"].free_address()
    await asyncio.gather(Call(trainers["both"]).init_transfer(host, port, 2), engine.init_transfer(host, port, 1, 2))
    yield Rig(engine, runner, trainers)
    await engine.shutdown()


def check(outcome: Outcome, coverage: float = 1.0) -> None:
    """What holds in every case: the experts got the sampler's choice in every pass, and every router learns."""
    assert outcome.metrics["routing/replayed_mismatch_frac"] == 0
    assert outcome.metrics["routing/coverage_frac"] == pytest.approx(coverage, abs=1e-12)
    assert sorted(outcome.router_gradients) == [1, 2, 3] and min(outcome.router_gradients.values()) > 0


def records(groups: list[FinishedGroup]) -> list[Rollout]:
    return [record for group in groups for record in group.payload]


@pytest.mark.parametrize("kind", ["single", "turns", "segments"])
async def test_rows_belong_to_their_tokens(rig, kind):
    """Long prompts in chunks, shared prefixes from the cache, several turns, several segments, requests preempted half-way."""
    before = await rig.preemptions()
    groups = await rig.sample(kind)
    segments = [s for r in records(groups) for s in r.segments]
    assert max(len(s) - s.sampled for s in segments) > BUDGET
    assert len(segments) == 32 * (2 if kind == "segments" else 1)
    if kind == "turns":
        assert all(r.turns == 3 for r in records(groups) if not r.truncated)
    outcome = rig.train(groups)
    check(outcome)
    assert outcome.metrics["routing/mismatch_frac"] < 1e-3
    assert outcome.metrics["offpolicy/abs_diff"] < 1e-4
    if kind == "single":
        assert await rig.preemptions() > before


def late_gap(outcome: Outcome, segments: list[Segment], version: int) -> float:
    """Largest difference of trainer and sampler at the tokens of `version` in segments that have older ones too."""
    gaps = [np.abs(outcome.traces[i].logprobs - s.logprobs)[s.versions == version] for i, s in enumerate(segments) if spans(s)]
    return float(np.concatenate(gaps).max())


def spans(segment: Segment) -> bool:
    return len(set(segment.versions[segment.loss_mask])) > 1


async def test_rollouts_that_span_an_update(rig):
    """Both sides of the border are replayed, or the new one alone: then the late tokens are exact, as the sampler computed
    the early positions anew with the weights that the trainer has."""
    before = (await rig.engine.stats()).tokens
    sampling = asyncio.create_task(rig.sample("single", max_tokens=120))
    while (await rig.engine.stats()).tokens < before + 600:
        await asyncio.sleep(0)
    await rig.turn_routers_round()
    groups = await sampling
    segments = [r.segments[0] for r in records(groups)]
    count = sum(map(spans, segments))
    assert count >= 8
    metrics = prepare(Batch(rig.version, groups, {}), 1, config("both")).metrics
    assert metrics["staleness/spanning_rollouts"] == count

    both = rig.train(groups)
    check(both)
    # Late rows are the new routers' choice and early ones the old routers', which the new ones turn round.
    assert both.metrics["routing/mismatch_frac"] > 0.1
    # From the input before the first new token on; a rollout of one version is replayed as a whole.
    replayed = [len(s) - int((s.versions == rig.version).argmax()) if spans(s) else len(s) - 1 for s in segments]
    late = rig.train(groups, "new")
    check(late, sum(replayed) / sum(len(s) - 1 for s in segments))
    assert late_gap(late, segments, rig.version) < 1e-4 < late_gap(both, segments, rig.version)
