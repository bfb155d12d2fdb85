"""Rules that a configuration must keep beyond its types. Each rule yields problems with the reason and what to change.

Free of torch. Files are looked at (agent module, datasets, model directory), nothing is imported or executed.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.algo.names import GROUP_ESTIMATORS, PRESETS, TOKEN_REWARD_ESTIMATORS, forbidden_correction, forbidden_loss
from engine.cluster_rules import CLUSTER_RULES
from engine.config import GYM_PREFIX, SPLIT_PATTERNS, Config
from engine.flags import Problem, suggest

Rule = Callable[[Config], Iterator[Problem]]
RULES: list[Rule] = []
TINY_MODELS = ("tiny:qwen3", "tiny:qwen3_moe")
MAX_STALENESS = 64
DATASET_SUFFIXES = (".jsonl", ".parquet")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


def validate(config: Config) -> list[Problem]:
    """Every broken rule; empty when the configuration can run. Relative paths are taken from the working directory."""
    return [problem for rule in (*RULES, *CLUSTER_RULES) for problem in rule(config)]


def rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


@rule
def model_is_given(config: Config) -> Iterator[Problem]:
    flag, name = "actor.model_name_or_path", config.actor.model_name_or_path
    if not name:
        yield Problem(flag, f"no model is set; give a model directory, a hub name, or {' or '.join(TINY_MODELS)}")
    elif name.startswith("tiny:") and name not in TINY_MODELS:
        yield Problem(flag, f"there is no built-in model '{name}'; there are {' and '.join(TINY_MODELS)}")
    elif name.startswith(("/", ".", "~")) and not (Path(name).expanduser() / "config.json").is_file():
        yield Problem(flag, f"{name} is not a model directory (it has no config.json)")


@rule
def staleness_is_meant(config: Config) -> Iterator[Problem]:
    # All groups that the bound admits are started at once.
    if config.train.max_staleness > MAX_STALENESS:
        yield Problem("train.max_staleness", f"at most {MAX_STALENESS}, got {config.train.max_staleness}")


@rule
def seed_suits_every_generator(config: Config) -> Iterator[Problem]:
    if not 0 <= config.train.seed < 2**31:
        yield Problem("train.seed", f"must be at least 0 and below 2147483648, got {config.train.seed}")


@rule
def prompts_are_given(config: Config) -> Iterator[Problem]:
    if not config.data.prompt_dataset:
        yield Problem("data.prompt_dataset", "no prompts are set; give a JSONL or Parquet file, a dataset directory or "
                      f"{GYM_PREFIX}NAME")  # fmt: skip


@rule
def datasets_exist(config: Config) -> Iterator[Problem]:
    for flag, names, split in (("data.prompt_dataset", config.data.prompt_dataset, config.data.prompt_split),
                               ("eval.dataset", config.eval.dataset, config.eval.split)):  # fmt: skip
        for name in names:
            if (fault := _dataset_fault(name, split)) is not None:
                yield Problem(flag, fault)


def _dataset_fault(name: str, split: str) -> str | None:
    if name.startswith(GYM_PREFIX):
        named = name.removeprefix(GYM_PREFIX).partition("?")[0]
        return None if named else f"'{name}' names no task; write {GYM_PREFIX}NAME, for example {GYM_PREFIX}chain_sum"
    path = Path(name).expanduser()
    if not path.exists():
        return f"{name} does not exist"
    if path.is_file():
        known = path.suffix in DATASET_SUFFIXES
        return None if known else f"{name} is neither {' nor '.join(DATASET_SUFFIXES)} nor a dataset directory"
    patterns = [pattern.format(split=split) for pattern in SPLIT_PATTERNS]
    return None if any(any(path.glob(p)) for p in patterns) else f"{name} has no split '{split}' ({', '.join(patterns)})"


@rule
def mixing_weights_fit(config: Config) -> Iterator[Problem]:
    weights, flag = config.data.prompt_probs, "data.prompt_probs"
    if not weights:
        return
    if len(weights) != len(config.data.prompt_dataset):
        yield Problem(flag, f"{len(weights)} weights for {len(config.data.prompt_dataset)} datasets; give one per dataset")
    if min(weights) <= 0:
        yield Problem(flag, "every weight must be above 0; leave a dataset out instead")


@rule
def agent_exports_a_runner(config: Config) -> Iterator[Problem]:
    flag, name = "train.agent_path", config.train.agent_path
    if name:
        yield from _exports(flag, name, "AgentRunner", "class AgentRunner(StepEnvRunner)")
    elif not config.distills:
        yield Problem(flag, "no agent is set; give the Python file that exports AgentRunner")


@rule
def own_estimator_is_there(config: Config) -> Iterator[Problem]:
    flag, advantage = "algo.advantage.estimator_path", config.algo.advantage
    if advantage.estimator == "own" and not advantage.estimator_path:
        yield Problem(flag, "no file is set; give the Python file that exports a function `estimator`")
    elif advantage.estimator_path and advantage.estimator != "own":
        yield Problem(flag, f"changes nothing with {advantage.estimator}; add --algo.advantage.estimator own")
    elif advantage.estimator_path:
        yield from _exports(flag, advantage.estimator_path, "estimator", "def estimator(inputs)")


def _exports(flag: str, file: str, wanted: str, definition: str) -> Iterator[Problem]:
    """Problems of a Python file that must bind `wanted` at its top level."""
    try:
        tree = ast.parse(Path(file).expanduser().read_bytes(), file)
    except OSError as error:
        yield Problem(flag, f"{file} cannot be read ({error.strerror})")
    except (SyntaxError, ValueError) as error:
        yield Problem(flag, f"{file} is not valid Python ({error})")
    else:
        if not _exported(tree) & {wanted, "*"}:
            near = suggest(wanted, [n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))])
            hint = f" ({near[0]} is there)" if near else ""
            yield Problem(flag, f"{file} exports no {wanted}{hint}; add `{definition}` to it")


def _exported(tree: ast.Module) -> set[str]:
    """Names bound at the top level of a module, also inside `if` and `try`; "*" for a star import."""
    names: set[str] = set()
    nodes: list[ast.AST] = list(tree.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        nodes += ast.iter_child_nodes(node)
    return names


@rule
def group_estimators_have_groups(config: Config) -> Iterator[Problem]:
    estimator, algo = config.algo.advantage.estimator, config.algo
    if estimator in GROUP_ESTIMATORS and config.rollout.n_samples_per_prompt < 2:
        yield Problem("rollout.n_samples_per_prompt", f"{estimator} compares the rollouts of one prompt; give at least 2, or "
                      "use --algo.advantage.estimator reinforce")  # fmt: skip
    low, high = algo.dynamic_filtering_range
    if algo.dynamic_filtering_enable and config.rollout.n_samples_per_prompt < 2:
        yield Problem("algo.dynamic_filtering_enable", "compares the rollouts of one prompt; give "
                      "--rollout.n_samples_per_prompt 2 or more, or leave it off")  # fmt: skip
    if low >= high:
        yield Problem("algo.dynamic_filtering_range", f"low must be below high, got {low} {high}")


@rule
def length_penalties_fit(config: Config) -> Iterator[Problem]:
    reward, limit = config.reward, config.data.max_len
    buffer, coef = reward.overlong_buffer_len, reward.stop_properly_penalty_coef
    if buffer is not None and buffer > limit:
        yield Problem("reward.overlong_buffer_len", f"{buffer} is more than a rollout may have (data.max_len {limit})")
    if coef is not None and coef > 1:
        yield Problem("reward.stop_properly_penalty_coef", f"above 1 truncated rollouts would be praised, got {coef}")
    if buffer is not None and coef is not None:
        yield Problem("reward.stop_properly_penalty_coef", "punishes the same rollouts as reward.overlong_buffer_len; use one")


@rule
def correction_is_possible(config: Config) -> Iterator[Problem]:
    advantage, flag = config.algo.advantage, "algo.advantage.is_correction_threshold"
    band = advantage.is_correction_threshold
    if len(band) not in (1, 2):
        yield Problem(flag, f"takes low and high, or a single upper bound, got {len(band)} values")
        return
    preset = advantage.is_correction_preset
    if preset and PRESETS[preset] != (advantage.is_correction_level, advantage.is_correction_mode):
        yield Problem("algo.advantage.is_correction_preset", f"{preset} means level and mode {' '.join(PRESETS[preset])}; "
                      "leave these two out, or the preset")  # fmt: skip
    pair = (band[0], band[1]) if len(band) == 2 else (-math.inf, band[0])
    reason = forbidden_correction(advantage.is_correction_level, advantage.is_correction_mode,
                                  advantage.is_correction_gating, pair)  # fmt: skip
    if reason:
        yield Problem(flag if "threshold" in reason else "algo.advantage.is_correction_level", reason)


@rule
def kl_has_an_effect(config: Config) -> Iterator[Problem]:
    kl, estimator = config.algo.kl, config.algo.advantage.estimator
    if not kl.init_coef:
        if kl.target is not None:
            yield Problem("algo.kl.target", "steers a coefficient of 0, which stays 0; give --algo.kl.init_coef too")
        return
    if config.distills:
        yield Problem("algo.kl.init_coef", "distillation is a KL to the teacher already; leave it 0")
    elif not kl.use_loss and estimator not in TOKEN_REWARD_ESTIMATORS:
        yield Problem("algo.kl.use_loss", f"{estimator} takes no reward of single tokens, so a KL in the reward would change "
                      "nothing; use --algo.kl.use_loss")  # fmt: skip
    if kl.use_loss and kl.estimator == "k1":
        yield Problem("algo.kl.estimator", "the gradient of k1 in the loss is 0 on average; use k2 or k3")
    if kl.ref == "rollout" and config.rollout.top_p < 1:
        yield Problem("rollout.top_p", "below 1 the sampler's log-probs are those of a cut distribution, no measure for a KL; "
                      "use 1, or --algo.kl.ref model")  # fmt: skip


@rule
def reference_is_used(config: Config) -> Iterator[Problem]:
    flag, name = "ref.model_name_or_path", config.ref.model_name_or_path
    needed = config.distills or (config.algo.kl.init_coef > 0 and config.algo.kl.ref == "model")
    if needed and not name:
        who = "distillation needs a teacher" if config.distills else "the KL needs a reference model"
        yield Problem(flag, f"{who}; give its directory or name" + ("" if config.distills else ", or --algo.kl.ref rollout"))
    elif name and not needed:
        yield Problem(flag, "would be loaded for nothing; set --algo.kl.init_coef, or leave it out")
    elif name.startswith("tiny:") and name != config.actor.model_name_or_path:
        yield Problem(flag, f"{name} would be random weights; give a directory, or actor.model_name_or_path itself")
    elif name.startswith(("/", ".", "~")) and not (Path(name).expanduser() / "config.json").is_file():
        yield Problem(flag, f"{name} is not a model directory (it has no config.json)")


@rule
def stale_tokens_are_corrected(config: Config) -> Iterator[Problem]:
    # At bound 0 nothing is in flight across an update, so partial rollouts need no correction there.
    if config.algo.advantage.is_correction_level == "off" and config.train.max_staleness > 0:
        yield Problem("algo.advantage.is_correction_level", f"train.max_staleness {config.train.max_staleness} trains on "
                      "tokens of older versions, which needs a correction; use token, or --train.max_staleness 0")  # fmt: skip


@rule
def sampling_matches_the_correction(config: Config) -> Iterator[Problem]:
    if config.rollout.top_p > 1:
        yield Problem("rollout.top_p", f"is a probability, at most 1, got {config.rollout.top_p}")
    if config.rollout.top_p < 1 and config.algo.advantage.is_correction_level != "off":
        yield Problem("rollout.top_p", "below 1 the sampler's log-probs are those of a cut distribution, which the correction "
                      "would take for a policy change; use 1, or --algo.advantage.is_correction_level off")  # fmt: skip


@rule
def replay_needs_experts(config: Config) -> Iterator[Problem]:
    name = config.actor.model_name_or_path
    if config.train.routing_replay and _is_dense(name):
        yield Problem("train.routing_replay", f"{name} has no experts whose choice could be replayed; leave it off")
    if config.actor.freeze_moe_router and _is_dense(name):
        yield Problem("actor.freeze_moe_router", f"{name} has no router that could be frozen; leave it off")
    if config.train.routing_replay_border != "both" and not config.train.routing_replay:
        yield Problem("train.routing_replay_border", "changes nothing without --train.routing_replay")


def _is_dense(model: str) -> bool:
    """True when the model is known to have no experts; a hub name tells nothing."""
    if model.startswith("tiny:"):
        return model == "tiny:qwen3"
    try:
        settings = json.loads((Path(model).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    settings = settings.get("text_config", settings)
    return not any(settings.get(key) for key in EXPERT_KEYS)


@rule
def tiny_settings_fit(config: Config) -> Iterator[Problem]:
    tiny = config.tiny
    if tiny.top_k > tiny.num_experts:
        yield Problem("tiny.top_k", f"{tiny.top_k} experts per token, but there are only {tiny.num_experts} (tiny.num_experts)")
    if tiny.warmup_steps and not config.actor.model_name_or_path.startswith("tiny:"):
        yield Problem("tiny.warmup_steps", "only a tiny: model is warmed up; use 0")


@rule
def batch_divides(config: Config) -> Iterator[Problem]:
    size, whole = config.train.batch_size, config.rollouts_per_batch
    if config.trainer_ranks > whole:
        yield Problem("rollout.batch_size", f"a batch of {whole} rollouts cannot feed {config.trainer_ranks} trainer ranks; "
                      "raise it or rollout.n_samples_per_prompt")  # fmt: skip
    if size is None:
        return
    if whole % size:
        yield Problem("train.batch_size", f"{size} does not divide the {whole} rollouts of a batch (rollout.batch_size x "
                      "rollout.n_samples_per_prompt)")  # fmt: skip
    elif size % config.rollout.n_samples_per_prompt:
        yield Problem("train.batch_size", f"{size} splits a prompt's rollouts; use a multiple of rollout.n_samples_per_prompt "
                      f"({config.rollout.n_samples_per_prompt})")  # fmt: skip
    elif size < config.trainer_ranks:
        yield Problem("train.batch_size", f"{size} rollouts cannot feed {config.trainer_ranks} trainer ranks")


@rule
def lengths_fit(config: Config) -> Iterator[Problem]:
    limit = config.data.max_len
    for flag, tokens in (("rollout.max_new_tokens", config.rollout.max_new_tokens),
                         ("eval.max_new_tokens", config.eval.max_new_tokens)):  # fmt: skip
        if tokens is not None and tokens >= limit:
            yield Problem(flag, f"{tokens} leaves no room for a prompt in data.max_len {limit}")
    if config.train.max_tokens_per_gpu < limit:
        yield Problem("train.max_tokens_per_gpu", f"{config.train.max_tokens_per_gpu} is less than one rollout may have "
                      f"(data.max_len {limit})")  # fmt: skip
    budget = config.vllm.max_num_batched_tokens
    if config.vllm.enable_chunked_prefill is False and budget is not None and budget < limit:
        yield Problem("vllm.max_num_batched_tokens", f"{budget} is less than one prompt may have (data.max_len {limit}); "
                      "raise it or use --vllm.enable_chunked_prefill")  # fmt: skip


@rule
def optimizer_is_sound(config: Config) -> Iterator[Problem]:
    actor = config.actor
    if actor.lr_scheduler != "constant" and config.train.max_steps is None:
        yield Problem("train.max_steps", f"the {actor.lr_scheduler} schedule needs to know the last step; set it, or use "
                      "--actor.lr_scheduler constant")  # fmt: skip
    if not all(0 <= beta < 1 for beta in actor.adam.betas):
        yield Problem("actor.adam.betas", f"both lie in [0, 1), got {actor.adam.betas}")
    problem = forbidden_loss(actor.loss_mode, actor.eps_clip_low_high, actor.dual_clip)
    if problem:
        yield Problem("actor.dual_clip" if problem.startswith("dual") else "actor.eps_clip_low_high", problem)
    if actor.entropy_coef is not None and actor.entropy_coef < 0:
        yield Problem("actor.entropy_coef", f"a negative bonus punishes exploration, got {actor.entropy_coef}")


@rule
def ranges_are_ordered(config: Config) -> Iterator[Problem]:
    low, high = config.reward.clip_range
    if low >= high:
        yield Problem("reward.clip_range", f"low must be below high, got {low} {high}")
    if config.trace.max_mb_per_step > config.trace.max_mb_per_run:
        yield Problem("trace.max_mb_per_step", f"{config.trace.max_mb_per_step} is more than the whole run may write "
                      f"(trace.max_mb_per_run {config.trace.max_mb_per_run})")  # fmt: skip
    if config.vllm.gpu_memory_utilization == 0:
        yield Problem("vllm.gpu_memory_utilization", "must be above 0")


@rule
def best_checkpoint_is_measured(config: Config) -> Iterator[Problem]:
    key = config.ckpt.best_metric_key
    if key and not (key.startswith("eval/") and config.eval.steps > 0):
        yield Problem("ckpt.best_metric_key", "names a metric of the evaluations while training, such as eval/NAME/score_mean; "
                      "set --eval.steps, or leave it empty")  # fmt: skip


@rule
def evaluation_has_prompts(config: Config) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation.dataset:
        return
    for name, wanted in (("eval_only", evaluation.eval_only), ("steps", evaluation.steps > 0),
                         ("eval_at_start", evaluation.eval_at_start),
                         ("eval_at_end", evaluation.eval_at_end)):  # fmt: skip
        if wanted:
            yield Problem("eval.dataset", f"eval.{name} is set, but there are no held-out prompts")


@rule
def intervals_are_steps(config: Config) -> Iterator[Problem]:
    for flag, steps in (("eval.steps", config.eval.steps), ("ckpt.save_steps", config.ckpt.save_steps)):
        if steps != -1 and steps < 1:
            yield Problem(flag, f"is a number of steps, or -1 for never, got {steps}")


@rule
def checkpoints_have_a_place(config: Config) -> Iterator[Problem]:
    if config.ckpt.path is not None and Path(config.ckpt.path).expanduser().is_file():
        yield Problem("ckpt.path", f"{config.ckpt.path} is a file; give a directory")


@rule
def cores_are_pinned_on_cpu(config: Config) -> Iterator[Problem]:
    if config.placement.pin_cores and config.placement.device == "cuda":
        yield Problem("placement.pin_cores", "splits CPU cores between sampler and trainer; leave it off with device cuda")


@rule
def colocated_engines_have_a_rank_each(config: Config) -> Iterator[Problem]:
    flag, ranks = "placement.colocate", config.trainer_ranks
    if not config.placement.colocate:
        return
    if config.placement.device == "cpu":
        yield Problem(flag, "shares GPUs, and placement.device is cpu; leave it off, or use --placement.device cuda")
    if config.vllm.num_engines != ranks or config.vllm.tensor_parallel_size != 1:
        yield Problem(flag, f"puts one engine of one GPU beside each of the {ranks} trainer ranks; use --vllm.num_engines {ranks}"
                      " --vllm.tensor_parallel_size 1")  # fmt: skip
