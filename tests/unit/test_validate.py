"""Every rule refuses what it is there for, names the flag, and leaves a sound configuration alone."""

import json
import time
from pathlib import Path

import pytest

from engine.algo.names import PRESETS
from engine.config import Config
from engine.flags import resolve
from engine.validate import validate

AGENT = "class AgentRunner:\n    pass\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    Path("prompts.jsonl").write_text("{}\n")
    Path("set/data").mkdir(parents=True)
    Path("set/data/train-0.parquet").touch()
    Path("dense").mkdir()
    Path("dense/config.json").write_text(json.dumps({"model_type": "qwen3"}))
    Path("moe").mkdir()
    Path("moe/config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 8}))
    return tmp_path


SOUND = {
    "actor.model_name_or_path": "tiny:qwen3_moe",
    "data.prompt_dataset": "prompts.jsonl",
    "train.agent_path": "agent.py",
    "algo.advantage.is_correction_level": "token",
}


def problems(**changes: str) -> list:
    """Problems of the sound configuration with changes; __ stands for the dot."""
    settings = SOUND | {key.replace("__", "."): value for key, value in changes.items()}
    config, wrong = resolve({}, {path: words.split() or [""] for path, words in settings.items()})
    assert wrong == []
    return validate(config)


def test_a_sound_configuration_has_no_problem(folder):
    assert problems() == []
    assert problems(data__prompt_dataset="reasoning-gym:chain_sum?num_terms=2 set", data__prompt_probs="1 3") == []
    assert problems(algo__advantage__is_correction_level="off", train__max_staleness="0", rollout__top_p="0.9") == []
    assert problems(actor__model_name_or_path="./moe", train__routing_replay="true") == []
    assert problems(actor__model_name_or_path="org/name", train__routing_replay="true") == []
    assert problems(rollout__batch_size="4", rollout__n_samples_per_prompt="4", train__batch_size="8") == []
    assert problems(algo__advantage__is_correction_threshold="5") == []
    assert problems(algo__advantage__is_correction_preset="icepop") == []
    assert problems(algo__kl__init_coef="0.1", ref__model_name_or_path="tiny:qwen3_moe") == []
    distill = {"algo__advantage__estimator": "on_policy_distill", "ref__model_name_or_path": "org/name"}
    assert problems(train__agent_path="", **distill) == []
    assert problems(actor__loss_mode="cispo", actor__eps_clip_low_high="0.2 5") == []


CASES = [
    ({"actor.model_name_or_path": ""}, "actor.model_name_or_path", "no model is set"),
    ({"actor.model_name_or_path": "tiny:gpt"}, "actor.model_name_or_path", "tiny:qwen3 and tiny:qwen3_moe"),
    ({"actor.model_name_or_path": "./nowhere"}, "actor.model_name_or_path", "no config.json"),
    ({"data.prompt_dataset": ""}, "data.prompt_dataset", "no prompts are set"),
    ({"data.prompt_dataset": "gone.jsonl"}, "data.prompt_dataset", "gone.jsonl does not exist"),
    ({"data.prompt_dataset": "set", "data.prompt_split": "test"}, "data.prompt_dataset", "no split 'test'"),
    ({"data.prompt_dataset": "set", "data.prompt_split": "/x"}, "data.prompt_dataset", "no split '/x'"),
    ({"data.prompt_dataset": "set", "data.prompt_split": "**x"}, "data.prompt_dataset", "no split '**x'"),
    ({"data.prompt_dataset": "agent.py"}, "data.prompt_dataset", "neither .jsonl nor .parquet"),
    ({"data.prompt_dataset": "reasoning-gym:?size=3"}, "data.prompt_dataset", "names no task"),
    ({"data.prompt_probs": "1 2"}, "data.prompt_probs", "2 weights for 1 datasets"),
    ({"train.agent_path": ""}, "train.agent_path", "no agent is set"),
    ({"algo.advantage.estimator": "own"}, "algo.advantage.estimator_path", "no file is set"),
    ({"algo.advantage.estimator_path": "agent.py"}, "algo.advantage.estimator_path", "changes nothing with reinforce"),
    ({"algo.advantage.estimator": "own", "algo.advantage.estimator_path": "gone.py"}, "algo.advantage.estimator_path",
     "cannot be read"),
    ({"algo.advantage.estimator": "own", "algo.advantage.estimator_path": "agent.py"}, "algo.advantage.estimator_path",
     "add `def estimator"),
    ({"train.agent_path": "gone.py"}, "train.agent_path", "cannot be read"),
    ({"algo.advantage.estimator": "grpo"}, "rollout.n_samples_per_prompt", "at least 2"),
    ({"algo.advantage.is_correction_threshold": "1 2 3"}, "algo.advantage.is_correction_threshold", "got 3 values"),
    ({"algo.advantage.is_correction_threshold": "5 0.5"}, "algo.advantage.is_correction_threshold", "low must be below high"),
    ({"algo.advantage.is_correction_level": "seq", "algo.advantage.is_correction_mode": "clip"},
     "algo.advantage.is_correction_level", "single tokens"),
    ({"algo.advantage.is_correction_level": "off"}, "algo.advantage.is_correction_level", "needs a correction"),
    ({"rollout.top_p": "0.9"}, "rollout.top_p", "use 1"),
    ({"actor.model_name_or_path": "tiny:qwen3", "train.routing_replay": "true"}, "train.routing_replay", "no experts"),
    ({"actor.model_name_or_path": "./dense", "train.routing_replay": "true"}, "train.routing_replay", "no experts"),
    ({"tiny.top_k": "9"}, "tiny.top_k", "only 8"),
    ({"actor.model_name_or_path": "./moe", "tiny.warmup_steps": "3"}, "tiny.warmup_steps", "only a tiny: model"),
    ({"rollout.batch_size": "1", "actor.num_gpus_per_node": "2"}, "rollout.batch_size", "2 trainer ranks"),
    ({"train.batch_size": "7"}, "train.batch_size", "does not divide"),
    ({"train.batch_size": "2", "rollout.n_samples_per_prompt": "4"}, "train.batch_size", "splits a prompt's rollouts"),
    ({"train.batch_size": "1", "actor.num_gpus_per_node": "2"}, "train.batch_size", "2 trainer ranks"),
    ({"rollout.max_new_tokens": "2048"}, "rollout.max_new_tokens", "no room for a prompt"),
    ({"eval.max_new_tokens": "4096"}, "eval.max_new_tokens", "no room for a prompt"),
    ({"train.max_tokens_per_gpu": "100"}, "train.max_tokens_per_gpu", "less than one rollout"),
    ({"vllm.enable_chunked_prefill": "false", "vllm.max_num_batched_tokens": "64"}, "vllm.max_num_batched_tokens", "one prompt"),
    ({"actor.lr_scheduler": "cosine"}, "train.max_steps", "cosine schedule"),
    ({"actor.dual_clip": "3", "actor.loss_mode": "gspo"}, "actor.dual_clip", "ppo alone"),
    ({"actor.loss_mode": "cispo"}, "actor.eps_clip_low_high", "at least 1"),
    ({"algo.kl.target": "0.1"}, "algo.kl.target", "stays 0"),
    ({"algo.kl.init_coef": "0.1", "algo.kl.ref": "rollout", "algo.advantage.estimator": "grpo",
      "rollout.n_samples_per_prompt": "2"}, "algo.kl.use_loss", "change nothing"),
    ({"algo.kl.init_coef": "0.1", "algo.kl.ref": "rollout", "algo.kl.use_loss": "true", "algo.kl.estimator": "k1"},
     "algo.kl.estimator", "0 on average"),
    ({"algo.kl.init_coef": "0.1", "algo.kl.ref": "rollout", "rollout.top_p": "0.9", "train.max_staleness": "0",
      "algo.advantage.is_correction_level": "off"}, "rollout.top_p", "no measure for a KL"),
    ({"algo.kl.init_coef": "0.1"}, "ref.model_name_or_path", "needs a reference"),
    ({"algo.advantage.estimator": "on_policy_distill"}, "ref.model_name_or_path", "needs a teacher"),
    ({"algo.advantage.estimator": "on_policy_distill", "ref.model_name_or_path": "org/name", "algo.kl.init_coef": "1"},
     "algo.kl.init_coef", "already"),
    ({"ref.model_name_or_path": "./moe"}, "ref.model_name_or_path", "for nothing"),
    ({"algo.kl.init_coef": "0.1", "ref.model_name_or_path": "tiny:qwen3"}, "ref.model_name_or_path", "random weights"),
    ({"algo.kl.init_coef": "0.1", "ref.model_name_or_path": "./gone"}, "ref.model_name_or_path", "no config.json"),
    ({"fsdp.tp_size": "2", "actor.num_gpus_per_node": "2", "actor.model_name_or_path": "./moe"}, "fsdp.tp_size", "dense models"),
    ({"fsdp.ep_size": "2", "actor.num_gpus_per_node": "2", "actor.model_name_or_path": "tiny:qwen3"}, "fsdp.ep_size",
     "no experts"),
    ({"actor.freeze_moe_router": "true", "actor.model_name_or_path": "tiny:qwen3"}, "actor.freeze_moe_router", "no router"),
    ({"train.routing_replay_border": "old"}, "train.routing_replay_border", "changes nothing"),
    ({"eval.eval_only": "true"}, "eval.dataset", "eval.eval_only"),
    ({"ckpt.best_metric_key": "eval/x/score_mean"}, "ckpt.best_metric_key", "eval.steps"),
    ({"algo.dynamic_filtering_enable": "true"}, "algo.dynamic_filtering_enable", "n_samples_per_prompt 2"),
    ({"algo.dynamic_filtering_range": "1 0"}, "algo.dynamic_filtering_range", "low must be below high"),
    ({"reward.overlong_buffer_len": "4000"}, "reward.overlong_buffer_len", "data.max_len 2048"),
    ({"reward.stop_properly_penalty_coef": "2"}, "reward.stop_properly_penalty_coef", "praised"),
    ({"reward.stop_properly_penalty_coef": "0", "reward.overlong_buffer_len": "8"},
     "reward.stop_properly_penalty_coef", "use one"),
    ({"algo.advantage.is_correction_preset": "mis"}, "algo.advantage.is_correction_preset", "seq mask"),
    ({"actor.eps_clip_low_high": "1.2 0.2"}, "actor.eps_clip_low_high", "low in [0, 1)"),
    ({"reward.clip_range": "1 1"}, "reward.clip_range", "below high"),
    ({"trace.max_mb_per_step": "600"}, "trace.max_mb_per_step", "whole run"),
    ({"eval.eval_at_end": "true"}, "eval.dataset", "eval.eval_at_end"),
    ({"eval.steps": "5"}, "eval.dataset", "eval.steps"),
    ({"ckpt.save_steps": "0"}, "ckpt.save_steps", "-1 for never"),
    ({"eval.steps": "-2"}, "eval.steps", "-1 for never"),
    ({"ckpt.path": "agent.py"}, "ckpt.path", "is a file"),
    ({"placement.pin_cores": "true", "placement.device": "cuda"}, "placement.pin_cores", "leave it off"),
    ({"placement.colocate": "true", "placement.device": "cpu"}, "placement.colocate", "shares GPUs"),
    ({"placement.colocate": "true", "vllm.num_engines": "2"}, "placement.colocate", "--vllm.num_engines 1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "flag", "message"), CASES, ids=[f"{flag}-{message}" for _, flag, message in CASES])
def test_refused(folder, changes, flag, message):
    (problem,) = problems(**{path.replace(".", "__"): words for path, words in changes.items()})
    assert problem.flag == flag and message in problem.message


def test_a_preset_is_two_flags_at_once():
    for preset, (level, mode) in PRESETS.items():
        config, wrong = resolve({}, {"algo.advantage.is_correction_preset": [preset]})
        advantage = config.algo.advantage
        assert (wrong, advantage.is_correction_level, advantage.is_correction_mode) == ([], level, mode)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class Agentrunner: pass", "exports no AgentRunner (Agentrunner is there)"),
        ("def f():\n    class AgentRunner: pass", "exports no AgentRunner"),
        ("class AgentRunner(:", "not valid Python"),
    ],
)
def test_agent_without_a_runner_is_refused(folder, code, message):
    (folder / "agent.py").write_text(code)
    (problem,) = problems()
    assert problem.flag == "train.agent_path" and message in problem.message


@pytest.mark.parametrize(
    "code",
    ["from other import AgentRunner", "from other import X as AgentRunner", "AgentRunner = make()", "from other import *",
     "try:\n    from a import AgentRunner\nexcept ImportError:\n    AgentRunner = None", "1/0\nclass AgentRunner: pass"],
)  # fmt: skip
def test_agent_is_read_but_not_executed(folder, code):
    (folder / "agent.py").write_text(code)
    assert problems() == []


def test_all_problems_at_once_and_quickly(folder):
    start = time.perf_counter()
    flags = {problem.flag for problem in validate(Config())}
    assert flags == {"actor.model_name_or_path", "data.prompt_dataset", "train.agent_path", "algo.advantage.is_correction_level"}
    assert time.perf_counter() - start < 0.1
