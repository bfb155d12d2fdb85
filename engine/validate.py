"""Rules that a configuration must keep beyond its types, with the reason and what to change.

A section of rules yields (broken, flag, message). Free of torch. Files are looked at (agent module, datasets, model
directory), nothing is imported or executed.
"""

import json
import math
import os
import re
from collections.abc import Callable
from symtable import symtable
from typing import Any

from engine.algo.names import GROUP_ESTIMATORS, PRESETS, TOKEN_REWARD_ESTIMATORS, forbidden_correction, forbidden_loss
from engine.cluster_rules import CLUSTER_RULES, EXPERT_KEYS, Rules, split_faults
from engine.config import Config
from engine.datasets import GYM_PREFIX, dataset_files
from engine.flags import Problem, suggest
from engine.wire import read_record

TINY_MODELS = ("tiny:qwen3", "tiny:qwen3_moe")
STAR_IMPORT = re.compile(rb"^\s*from\s.*\bimport\s*\*", re.MULTILINE)


def validate(config: Config) -> list[Problem]:
    """Every broken rule; empty when the configuration can run. Relative paths are taken from the working directory."""
    return [Problem(flag, message) for rules in SECTIONS for broken, flag, message in rules(config) if broken]


def model_rules(c: Config) -> Rules:
    flag, name = "actor.model_name_or_path", c.actor.model_name_or_path
    tiny = name.startswith("tiny:")
    yield not name, flag, f"no model is set; give a model directory, a hub name, or {' or '.join(TINY_MODELS)}"
    yield tiny and name not in TINY_MODELS, flag, f"there is no built-in model '{name}'; there are {' and '.join(TINY_MODELS)}"
    yield _no_model_directory(name), flag, f"{name} is not a model directory (it has no config.json)"
    yield (c.tiny.top_k > c.tiny.num_experts, "tiny.top_k",
           f"{c.tiny.top_k} experts per token, but there are only {c.tiny.num_experts} (tiny.num_experts)")  # fmt: skip
    yield c.tiny.warmup_steps and not tiny, "tiny.warmup_steps", "only a tiny: model is warmed up; use 0"
    dense, replays = is_dense(name), c.train.routing_replay
    for where, fault in split_faults(_settings(name) or {}, c.fsdp.tp_size, c.fsdp.cp_size):
        yield True, where, fault
    yield replays and dense, "train.routing_replay", f"{name} has no experts whose choice could be replayed; leave it off"
    yield (c.actor.freeze_moe_router and dense, "actor.freeze_moe_router",
           f"{name} has no router that could be frozen; leave it off")  # fmt: skip
    yield c.fsdp.ep_size > 1 and dense, "fsdp.ep_size", f"{name} has no experts that ranks could share; use 1"
    yield (c.train.routing_replay_border != "both" and not replays, "train.routing_replay_border",
           "changes nothing without --train.routing_replay")  # fmt: skip


def _no_model_directory(name: str) -> bool:
    return name.startswith(("/", ".", "~")) and not os.path.isfile(f"{os.path.expanduser(name)}/config.json")


def is_dense(model: str) -> bool:
    """True when the model is known to have no experts."""
    settings = _settings(model)
    return settings is not None and not any(settings.get(key) for key in EXPERT_KEYS)


def _settings(model: str) -> dict[str, Any] | None:
    """What is known of the model, in the words of its config.json; a hub name tells nothing."""
    if model.startswith("tiny:"):
        return {"num_experts": int(model != "tiny:qwen3")}
    try:
        settings = json.loads(read_record(f"{os.path.expanduser(model)}/config.json"))
        settings = settings.get("text_config", settings)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return settings if isinstance(settings, dict) else None


def prompt_rules(c: Config) -> Rules:
    datasets, weights, flag = c.data.prompt_dataset, c.data.prompt_probs, "data.prompt_probs"
    yield (not datasets, "data.prompt_dataset",
           f"no prompts are set; give a JSONL or Parquet file, a dataset directory or {GYM_PREFIX}NAME")  # fmt: skip
    for where, names, split in (("data.prompt_dataset", datasets, c.data.prompt_split),
                                ("eval.dataset", c.eval.dataset, c.eval.split)):  # fmt: skip
        for name in names:
            fault = _dataset_fault(name, split)
            yield fault, where, fault or ""
    yield (weights and len(weights) != len(datasets), flag,
           f"{len(weights)} weights for {len(datasets)} datasets; give one per dataset")  # fmt: skip


def _dataset_fault(name: str, split: str) -> str | None:
    if name.startswith(GYM_PREFIX):
        named = name.removeprefix(GYM_PREFIX).partition("?")[0]
        return None if named else f"'{name}' names no task; write {GYM_PREFIX}NAME, for example {GYM_PREFIX}chain_sum"
    try:
        dataset_files(name, split)
    except ValueError as error:
        return str(error)
    return None


def python_file_rules(c: Config) -> Rules:
    flag, agent = "train.agent_path", c.train.agent_path
    yield not agent and not c.distills, flag, "no agent is set; give the Python file that exports AgentRunner"
    fault = _export_fault(agent, "AgentRunner", "class AgentRunner(StepEnvRunner)") if agent else None
    yield fault, flag, fault or ""
    flag, name, file = "algo.advantage.estimator_path", c.algo.advantage.estimator, c.algo.advantage.estimator_path
    yield name == "own" and not file, flag, "no file is set; give the Python file that exports a function `estimator`"
    yield file and name != "own", flag, f"changes nothing with {name}; add --algo.advantage.estimator own"
    fault = _export_fault(file, "estimator", "def estimator(inputs)") if file and name == "own" else None
    yield fault, flag, fault or ""


def _export_fault(file: str, wanted: str, definition: str) -> str | None:
    """What is wrong with a Python file that must bind `wanted` at its top level, or import everything of another one."""
    try:
        source = read_record(os.path.expanduser(file))
        symbols = symtable(source, file, "exec").get_symbols()
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file} is not valid Python ({error or 'nested too deep'})"
    bound = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    if wanted in bound or STAR_IMPORT.search(source):
        return None
    near = suggest(wanted, [symbol.get_name() for symbol in symbols if symbol.is_namespace()])
    hint = f" ({near[0]} is there)" if near else ""
    return f"{file} exports no {wanted}{hint}; add `{definition}` to it"


def reward_rules(c: Config) -> Rules:
    estimator, samples = c.algo.advantage.estimator, c.rollout.n_samples_per_prompt
    yield (estimator in GROUP_ESTIMATORS and samples < 2, "rollout.n_samples_per_prompt",
           f"{estimator} compares the rollouts of one prompt; give at least 2, or use "
           "--algo.advantage.estimator reinforce")  # fmt: skip
    yield (c.algo.dynamic_filtering_enable and samples < 2, "algo.dynamic_filtering_enable",
           "compares the rollouts of one prompt; give --rollout.n_samples_per_prompt 2 or more, or leave it off")  # fmt: skip
    for flag, (low, high) in (("algo.dynamic_filtering_range", c.algo.dynamic_filtering_range),
                              ("reward.clip_range", c.reward.clip_range)):  # fmt: skip
        yield low >= high, flag, f"low must be below high, got {low} {high}"
    buffer, limit, coef = c.reward.overlong_buffer_len, c.data.max_len, c.reward.stop_properly_penalty_coef
    yield (buffer is not None and buffer > limit, "reward.overlong_buffer_len",
           f"{buffer} is more than a rollout may have (data.max_len {limit})")  # fmt: skip
    flag = "reward.stop_properly_penalty_coef"
    yield coef is not None and coef > 1, flag, f"above 1 truncated rollouts would be praised, got {coef}"
    yield None not in (buffer, coef), flag, "punishes the same rollouts as reward.overlong_buffer_len; use one"


def correction_rules(c: Config) -> Rules:
    advantage, flag, top_p = c.algo.advantage, "algo.advantage.is_correction_threshold", c.rollout.top_p
    level, mode, preset, band = (advantage.is_correction_level, advantage.is_correction_mode, advantage.is_correction_preset,
                                 advantage.is_correction_threshold)  # fmt: skip
    yield len(band) not in (1, 2), flag, f"takes low and high, or a single upper bound, got {len(band)} values"
    if len(band) in (1, 2):
        pair = (band[0], band[1]) if len(band) == 2 else (-math.inf, band[0])
        reason = forbidden_correction(level, mode, advantage.is_correction_gating, pair) or ""
        yield reason, flag if "threshold" in reason else "algo.advantage.is_correction_level", reason
    meant = PRESETS[preset] if preset else (level, mode)
    yield (meant != (level, mode), "algo.advantage.is_correction_preset",
           f"{preset} means level and mode {' '.join(meant)}; leave these two out, or the preset")  # fmt: skip
    # At bound 0 nothing is in flight across an update, so partial rollouts need no correction there.
    yield (level == "off" and c.train.max_staleness > 0, "algo.advantage.is_correction_level",
           f"train.max_staleness {c.train.max_staleness} trains on tokens of older versions, which needs a correction; "
           "use token, or --train.max_staleness 0")  # fmt: skip
    yield (top_p < 1 and level != "off", "rollout.top_p",
           "below 1 the sampler's log-probs are those of a cut distribution, which the correction would take for a policy "
           "change; use 1, or --algo.advantage.is_correction_level off")  # fmt: skip


def kl_rules(c: Config) -> Rules:
    kl, estimator = c.algo.kl, c.algo.advantage.estimator
    yield (not kl.init_coef and kl.target is not None, "algo.kl.target",
           "steers a coefficient of 0, which stays 0; give --algo.kl.init_coef too")  # fmt: skip
    on = kl.init_coef > 0
    yield on and c.distills, "algo.kl.init_coef", "distillation is a KL to the teacher already; leave it 0"
    yield (on and not c.distills and not kl.use_loss and estimator not in TOKEN_REWARD_ESTIMATORS, "algo.kl.use_loss",
           f"{estimator} takes no reward of single tokens, so a KL in the reward would change nothing; use "
           "--algo.kl.use_loss")  # fmt: skip
    yield (on and kl.use_loss and kl.estimator == "k1", "algo.kl.estimator",
           "the gradient of k1 in the loss is 0 on average; use k2 or k3")  # fmt: skip
    yield (on and kl.ref == "rollout" and c.rollout.top_p < 1, "rollout.top_p",
           "below 1 the sampler's log-probs are those of a cut distribution, no measure for a KL; use 1, or "
           "--algo.kl.ref model")  # fmt: skip
    flag, name, needed = "ref.model_name_or_path", c.ref.model_name_or_path, c.distills or (on and kl.ref == "model")
    who = "distillation needs a teacher" if c.distills else "the KL needs a reference model"
    yield needed and not name, flag, f"{who}; give its directory or name{'' if c.distills else ', or --algo.kl.ref rollout'}"
    yield name and not needed, flag, "would be loaded for nothing; set --algo.kl.init_coef, or leave it out"
    yield (needed and name.startswith("tiny:") and name != c.actor.model_name_or_path, flag,
           f"{name} would be random weights; give a directory, or actor.model_name_or_path itself")  # fmt: skip
    yield needed and _no_model_directory(name), flag, f"{name} is not a model directory (it has no config.json)"


def size_rules(c: Config) -> Rules:
    size, whole, ranks, samples = c.train.batch_size, c.rollouts_per_batch, c.data_ranks, c.rollout.n_samples_per_prompt
    flag, limit, most = "train.batch_size", c.data.max_len, c.train.max_tokens_per_gpu * c.fsdp.cp_size
    yield (ranks > whole, "rollout.batch_size",
           f"a batch of {whole} rollouts cannot feed {ranks} trainer ranks; raise it or "
           "rollout.n_samples_per_prompt")  # fmt: skip
    if size is not None:
        yield (whole % size, flag,
               f"{size} does not divide the {whole} rollouts of a batch (rollout.batch_size x "
               "rollout.n_samples_per_prompt)")  # fmt: skip
        yield (not whole % size and size % samples, flag,
               f"{size} splits a prompt's rollouts; use a multiple of rollout.n_samples_per_prompt ({samples})")  # fmt: skip
        yield (not whole % size and not size % samples and size < ranks, flag,
               f"{size} rollouts cannot feed {ranks} trainer ranks")  # fmt: skip
    for where, tokens in (("rollout", c.rollout.max_new_tokens), ("eval", c.eval.max_new_tokens)):
        yield (tokens is not None and tokens >= limit, f"{where}.max_new_tokens",
               f"{tokens} leaves no room for a prompt in data.max_len {limit}")  # fmt: skip
    yield (most < limit, "train.max_tokens_per_gpu", f"{most} is less than one rollout may have (data.max_len {limit})")
    budget = c.vllm.max_num_batched_tokens
    yield (c.vllm.enable_chunked_prefill is False and budget is not None and budget < limit, "vllm.max_num_batched_tokens",
           f"{budget} is less than one prompt may have (data.max_len {limit}); raise it or use "
           "--vllm.enable_chunked_prefill")  # fmt: skip


def optimizer_rules(c: Config) -> Rules:
    actor = c.actor
    yield (actor.lr_scheduler != "constant" and c.train.max_steps is None, "train.max_steps",
           f"the {actor.lr_scheduler} schedule needs to know the last step; set it, or use "
           "--actor.lr_scheduler constant")  # fmt: skip
    reason = forbidden_loss(actor.loss_mode, actor.eps_clip_low_high, actor.dual_clip) or ""
    yield reason, "actor.dual_clip" if reason.startswith("dual") else "actor.eps_clip_low_high", reason


def record_rules(c: Config) -> Rules:
    trace, key, evaluation, path = c.trace, c.ckpt.best_metric_key, c.eval, c.ckpt.path
    yield (trace.max_mb_per_step > trace.max_mb_per_run, "trace.max_mb_per_step",
           f"{trace.max_mb_per_step} is more than the whole run may write (trace.max_mb_per_run "
           f"{trace.max_mb_per_run})")  # fmt: skip
    yield (key and not (key.startswith("eval/") and evaluation.steps > 0), "ckpt.best_metric_key",
           "names a metric of the evaluations while training, such as eval/NAME/score_mean; set "
           "--eval.steps, or leave it empty")  # fmt: skip
    for name in ("eval_only", "steps", "eval_at_start", "eval_at_end"):
        wanted = getattr(evaluation, name) > 0
        yield wanted and not evaluation.dataset, "eval.dataset", f"eval.{name} is set, but there are no held-out prompts"
    for flag, steps in (("eval.steps", evaluation.steps), ("ckpt.save_steps", c.ckpt.save_steps)):
        yield steps != -1 and steps < 1, flag, f"is a number of steps, or -1 for never, got {steps}"
    yield path and os.path.isfile(os.path.expanduser(path)), "ckpt.path", f"{path} is a file; give a directory"


SECTIONS: tuple[Callable[[Config], Rules], ...] = (
    model_rules, prompt_rules, python_file_rules, reward_rules, correction_rules, kl_rules, size_rules, optimizer_rules,
    record_rules, *CLUSTER_RULES,
)  # fmt: skip
