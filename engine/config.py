"""The typed configuration tree. A run is a recipe (TOML) plus dotted overrides; flags, form, help and docs come from here.

Importable without torch. Field names follow NVIDIA's Molt where they mean the same thing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.algo.names import AGGREGATIONS, ESTIMATOR_NAMES, GATINGS, KL_ESTIMATORS, LEVELS, LOSS_MODES, MODES, PRESETS

Pair = tuple[float, float]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of every section: unknown keys, wrong types, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def option(default: Any, help: str, **extra: Any) -> Any:
    """A field with its help line; the flag name is the field's dotted path."""
    return Field(default, description=help, **extra)


class RecipeInfo(Section):
    title: str = option("", "one line that names the recipe")
    task: str = option("", "what is learned")
    model: str = option("", "the model it is made for")
    hardware: str = option("", "what it needs")


class AdamConfig(Section):
    lr: NonNegativeFloat = option(1e-6, "learning rate; that of the actor can be changed while the run is live")
    betas: tuple[Decay, Decay] = option((0.9, 0.95), "AdamW betas")
    eps: PositiveFloat = option(1e-8, "AdamW epsilon")
    weight_decay: NonNegativeFloat = option(0.0, "decoupled weight decay")


class ActorConfig(Section):
    model_name_or_path: str = option("", "model directory, hub name, or tiny:qwen3 / tiny:qwen3_moe (built in code)")
    adam: AdamConfig = AdamConfig()
    lr_scheduler: Literal["constant", "linear", "cosine"] = option("constant", "shape after the warm-up")
    lr_warmup_ratio: Share = option(0.03, "share of train.max_steps spent on linear warm-up")
    min_lr_ratio: Share = option(0.1, "final learning rate as a share of adam.lr (linear, cosine)")
    max_norm: PositiveFloat = option(1.0, "gradient norm clip")
    gradient_checkpoint: Literal["none", "full"] = option("none", "recompute layers in backward to save memory")
    loss_mode: Literal[*LOSS_MODES] = option("ppo", "policy loss")
    loss_agg_mode: Literal[*AGGREGATIONS] = option("token-mean", "how token losses become one number")
    eps_clip_low_high: Pair = option((0.2, 0.2), "clip range below and above 1 (ppo, gspo); cispo: high is the ceiling itself")
    dual_clip: float | None = option(None, "dual clip bound for negative advantages (ppo)", gt=1)
    entropy_coef: NonNegativeFloat | None = option(None, "entropy bonus coefficient")
    freeze_moe_router: bool = option(False, "leave the routers of a MoE model as they are")
    num_nodes: PositiveInt = option(1, "nodes of the trainer")
    num_gpus_per_node: PositiveInt = option(1, "trainer ranks per node (one GPU each; CPU processes without GPUs)")


class CriticConfig(Section):
    adam: AdamConfig = AdamConfig(lr=1e-5)
    value_clip: PositiveFloat = option(0.2, "how far a value may move from that before the batch, in the loss of the critic")


class RefConfig(Section):
    model_name_or_path: str = option("", "frozen reference or teacher; the actor's own name means its weights at the start")


class FsdpConfig(Section):
    param_dtype: Literal["fp32", "bf16"] = option("bf16", "compute type of the trainer; masters stay fp32")
    tp_size: PositiveInt = option(1, "ranks that split every matrix of a dense model in the trainer")
    cp_size: PositiveInt = option(1, "ranks that split every row of the trainer; needs packing_samples")
    ep_size: PositiveInt = option(1, "ranks that share the experts of a MoE model (CUDA)")
    attn_implementation: Literal["sdpa", "eager", "te"] = option(
        "sdpa", "attention; te: Transformer Engine, where AutoModel has it (CUDA)"
    )
    packing_samples: bool = option(False, "segments of a micro-batch behind each other in one row, without padding")
    offload: Literal["none", "optimizer", "full"] = option(
        "none", "what lives in host memory: Adam's state, or weights too (CUDA)"
    )


class DataConfig(Section):
    prompt_dataset: tuple[str, ...] = option((), "JSONL, Parquet, dataset directory or reasoning-gym:NAME?key=value")
    prompt_probs: tuple[PositiveFloat, ...] = option((), "mixing weights, one per dataset; empty: by size")
    prompt_split: str = option("train", "split of a dataset directory")
    input_key: str = option("input", "column that holds the prompt")
    label_key: str | None = option(None, "column that holds the expected answer")
    apply_chat_template: bool = option(False, "render prompts with the model's chat template")
    max_samples: PositiveInt = option(100_000_000, "use at most this many prompts")
    max_len: PositiveInt = option(2048, "context limit of a rollout in tokens, prompt included")


class AdvantageConfig(Section):
    estimator: Literal[*ESTIMATOR_NAMES] = option("reinforce", "advantage estimator; own: that of estimator_path")
    estimator_path: str = option("", "Python file that exports a function `estimator` (relative to the recipe)")
    gamma: Share = option(1.0, "discount per token (reinforce, gae)")
    lam: Share = option(1.0, "decay of GAE; 1: the whole return")
    no_whiten: bool = option(False, "skip the whitening of reinforce, reinforce_baseline and gae")
    is_correction_preset: Literal[*PRESETS] | None = option(
        None, "level and mode at once: tis = token trunc, icepop = token mask, mis = seq mask"
    )
    is_correction_level: Literal[*LEVELS] = option("off", "unit of the importance correction")
    is_correction_mode: Literal[*MODES] = option("mask", "what happens to a unit outside the band")
    is_correction_gating: Literal[*GATINGS] = option("ratio", "statistic compared with the band")
    is_correction_threshold: tuple[float, ...] = option((0.5, 5.0), "band low high; a single value is an upper bound")

    @model_validator(mode="before")
    @classmethod
    def _name_the_preset(cls, values: Any) -> Any:
        """A preset fills in level and mode; validate.py refuses values that contradict it."""
        if isinstance(values, dict) and values.get("is_correction_preset") in PRESETS:
            level, mode = PRESETS[values["is_correction_preset"]]
            return {"is_correction_level": level, "is_correction_mode": mode} | values
        return values


class KlConfig(Section):
    init_coef: NonNegativeFloat = option(0.0, "coefficient of the KL; 0: none")
    estimator: Literal[*KL_ESTIMATORS] = option("k3", "estimate of the KL from sampled tokens")
    use_loss: bool = option(False, "KL as a term of the loss; else it is taken from the reward of each token")
    ref: Literal["model", "rollout"] = option("model", "distance to the reference model or to the policy that sampled")
    target: PositiveFloat | None = option(None, "KL in nats per token that the coefficient is steered to; empty: fixed")
    horizon: PositiveInt = option(10_000, "rollouts over which the coefficient adapts")


class AlgoConfig(Section):
    advantage: AdvantageConfig = AdvantageConfig()
    kl: KlConfig = KlConfig()
    dynamic_filtering_enable: bool = option(False, "drop groups whose mean score says that nothing can be learnt from them")
    dynamic_filtering_range: Pair = option((0.0, 1.0), "groups are kept when their mean score lies strictly inside")


class RewardConfig(Section):
    clip_range: Pair = option((-10.0, 10.0), "rewards are clamped to this range, penalties included")
    overlong_buffer_len: PositiveInt | None = option(None, "tokens before data.max_len in which the over-long penalty grows")
    overlong_penalty_factor: NonNegativeFloat = option(1.0, "over-long penalty at data.max_len")
    stop_properly_penalty_coef: float | None = option(None, "truncated rollouts: factor of the reward; below 0 the reward itself")


class VllmConfig(Section):
    num_engines: PositiveInt = option(1, "vLLM engines behind the router")
    tensor_parallel_size: PositiveInt = option(1, "GPUs of one engine")
    dtype: Literal["bfloat16", "float32", "float16"] = option("bfloat16", "compute type of the sampler")
    enforce_eager: bool = option(False, "no compilation and no CUDA graphs")
    gpu_memory_utilization: PositiveShare = option(0.85, "share of the GPU (on CPU: of the host) memory an engine may take")
    kv_cache_gb: PositiveFloat | None = option(
        None, "KV cache of one engine, in GiB; empty: what gpu_memory_utilization leaves (CPU: 1)"
    )
    max_num_seqs: PositiveInt = option(256, "sequences an engine runs at once")
    max_num_batched_tokens: PositiveInt | None = option(None, "token budget of one engine step")
    enable_prefix_caching: bool = option(False, "reuse KV of shared prefixes")
    enable_chunked_prefill: bool | None = option(None, "split long prefills; empty: vLLM decides")


class RolloutConfig(Section):
    batch_size: PositiveInt = option(1024, "prompts (groups) per training batch")
    n_samples_per_prompt: PositiveInt = option(1, "rollouts per prompt")
    num_runners: PositiveInt = option(2, "agent runner processes")
    max_new_tokens: PositiveInt | None = option(None, "sampled tokens per turn; empty: what the context leaves")
    temperature: PositiveFloat = option(1.0, "sampling temperature (can be changed while the run is live)")
    top_p: PositiveShare = option(1.0, "nucleus sampling bound")
    timeout_s: PositiveFloat = option(1800.0, "wall time of one episode before it counts as failed")
    max_retries: NonNegativeInt = option(1, "new attempts for a failed rollout")
    max_failure_rate: Share = option(0.5, "stop the run when more than this share of recent rollouts fails for good")


class TrainConfig(Section):
    agent_path: str = option("", "Python file that exports AgentRunner (relative to the recipe)")
    batch_size: PositiveInt | None = option(None, "rollouts per optimizer step; empty: the whole batch")
    max_tokens_per_gpu: PositiveInt = option(16192, "token budget of one micro-batch on a rank, padding included")
    logprob_chunk_tokens: PositiveInt = option(2048, "rows of the vocabulary projection held at once")
    num_episodes: PositiveInt = option(1, "passes over the prompts")
    max_steps: PositiveInt | None = option(None, "stop after this many steps; empty: when the prompts are used up")
    seed: NonNegativeInt = option(42, "seed of data order, sampling and model building", le=2**31 - 1)
    max_staleness: NonNegativeInt = option(1, "versions a trained token may lag behind; 0 is strictly synchronous (live)", le=64)
    partial_rollout_enable: bool = option(True, "rollouts in flight continue across a weight update")
    routing_replay: bool = option(False, "replay the sampler's expert choice in the training forward (R3)")
    routing_replay_border: Literal["both", "old", "new"] = option(
        "both", "rollouts that span an update: replay the choices on both sides of it, or those of one version alone"
    )
    probe_sequences: NonNegativeInt = option(8, "fixed sequences scored by both sides after every update; 0: off")
    probe_every: PositiveInt = option(1, "run the probe after every n-th update")


class EvalConfig(Section):
    dataset: tuple[str, ...] = option((), "held-out prompts, same forms as data.prompt_dataset")
    split: str = option("train", "split of a dataset directory")
    steps: int = option(-1, "evaluate every n steps; -1: only on request, at start and at the end")
    eval_only: bool = option(False, "evaluate once and end, without training")
    eval_at_start: bool = option(False, "evaluate before the first step")
    eval_at_end: bool = option(False, "evaluate after the last step")
    max_samples: PositiveInt = option(1_000_000, "use at most this many prompts")
    temperature: NonNegativeFloat = option(0.0, "sampling temperature of the evaluation; 0 is greedy")
    n_samples_per_prompt: PositiveInt = option(1, "rollouts per prompt")
    max_new_tokens: PositiveInt | None = option(None, "sampled tokens per turn; empty: as in rollout")


class CkptConfig(Section):
    path: str | None = option(None, "checkpoint directory; empty: checkpoints/ in the run directory")
    save_steps: int = option(-1, "save every n steps; -1: only on request, on a stop and at the end")
    max_num: PositiveInt = option(3, "checkpoints kept")
    disable_final_save: bool = option(False, "no checkpoint after the last step")
    best_metric_key: str = option("", "eval/... metric; its best evaluation is kept in best/, the very weights evaluated")
    save_hf: bool = option(False, "also write the weights in Hugging Face form at every save")


class TinyConfig(Section):
    hidden_size: PositiveInt = option(64, "width of a tiny model")
    num_layers: PositiveInt = option(2, "layers of a tiny model")
    num_experts: PositiveInt = option(8, "experts per MoE layer")
    top_k: PositiveInt = option(2, "experts per token")
    warmup_steps: NonNegativeInt = option(0, "supervised steps on the agent's warmup_examples before the run")
    warmup_lr: PositiveFloat = option(3e-3, "learning rate of those steps")


class TraceConfig(Section):
    rollouts_per_step: NonNegativeInt = option(16, "rollouts written per step for inspection, whole groups (at most 64)", le=64)
    max_mb_per_step: PositiveFloat = option(8.0, "size limit of one step's rollouts, compressed")
    max_mb_per_run: PositiveFloat = option(512.0, "size limit of all rollouts of a run")


class PlacementConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where sampler and trainer run")
    ray_address: str | None = option(None, "an existing Ray cluster; empty: an own one on this machine")
    colocate: bool = option(False, "sampler and trainer take turns on the same GPUs: one engine on the GPU of every trainer rank")
    pin_cores: bool = option(False, "split the machine's cores evenly between sampler and trainer (CPU)")


class SlurmConfig(Section):
    partition: str | None = option(None, "partition; empty: the cluster's default")
    account: str | None = option(None, "account to charge")
    qos: str | None = option(None, "quality of service")
    reservation: str | None = option(None, "reservation to use")
    constraint: str | None = option(None, "node features that are needed, such as h100&nvlink")
    nodes: PositiveInt = option(1, "nodes of the allocation")
    gpus_per_node: NonNegativeInt = option(0, "GPUs of every node")
    gpu_type: str | None = option(None, "GPU type as the cluster names it, such as h100")
    cpus_per_task: PositiveInt | None = option(None, "CPUs on every node; empty: what the partition gives")
    mem: str | None = option(None, "memory on every node as Slurm writes it (256G); 0: all of it")
    time: str = option("04:00:00", "time limit as Slurm writes it (2-00:00:00); the run outlives it by requeueing")
    exclusive: bool = option(False, "whole nodes")
    comment: str | None = option(None, "job comment, where a site wants one (idle-reaper exemptions, say)")
    extra: tuple[str, ...] = option((), "further options of sbatch, one each, such as --mail-type=END")
    modules: tuple[str, ...] = option((), "modules to load in the job")
    env: tuple[str, ...] = option((), "environment of the job: NAME=value to set, NAME to pass on from here")
    setup: tuple[str, ...] = option((), "shell commands that run in the job before anything else")
    container: str | None = option(None, "container image: a path, or what pyxis takes")
    container_kind: Literal["pyxis", "apptainer"] = option("pyxis", "how the container is started")
    container_mounts: tuple[str, ...] = option((), "host:container paths to mount; the run directory always is")
    python: str | None = option(None, "interpreter of the engine in the job; empty: the one that launches")
    signal_seconds: PositiveInt = option(300, "seconds before the time limit at which the run saves and requeues")
    requeue: bool = option(True, "go on in a new job start after a time limit, preemption or node failure")
    max_restarts: NonNegativeInt = option(3, "restarts after crashes without a step between them, each after a longer wait")
    object_store_gb: PositiveFloat | None = option(None, "Ray's object store on every node; empty: Ray decides")


class Config(Section):
    recipe: RecipeInfo = RecipeInfo()
    actor: ActorConfig = ActorConfig()
    critic: CriticConfig = CriticConfig()
    ref: RefConfig = RefConfig()
    fsdp: FsdpConfig = FsdpConfig()
    data: DataConfig = DataConfig()
    algo: AlgoConfig = AlgoConfig()
    reward: RewardConfig = RewardConfig()
    vllm: VllmConfig = VllmConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    ckpt: CkptConfig = CkptConfig()
    tiny: TinyConfig = TinyConfig()
    trace: TraceConfig = TraceConfig()
    placement: PlacementConfig = PlacementConfig()
    slurm: SlurmConfig = SlurmConfig()

    @property
    def rollouts_per_batch(self) -> int:
        return self.rollout.batch_size * self.rollout.n_samples_per_prompt

    @property
    def distills(self) -> bool:
        return self.algo.advantage.estimator == "on_policy_distill"

    @property
    def measures_first(self) -> bool:
        """Whether the advantages need a pass of the models over the batch: a KL in the reward, a teacher, or a critic."""
        return self.token_rewards or self.algo.advantage.estimator == "gae"

    @property
    def token_rewards(self) -> bool:
        """Whether single tokens have a reward: a KL to the reference, or to a teacher."""
        return self.distills or (self.algo.kl.init_coef > 0 and not self.algo.kl.use_loss)

    @property
    def engine_gpus(self) -> int:
        """GPUs that the engines have for themselves; on CPU, how many would be."""
        return 0 if self.placement.colocate else self.vllm.num_engines * self.vllm.tensor_parallel_size

    @property
    def trainer_ranks(self) -> int:
        return self.actor.num_nodes * self.actor.num_gpus_per_node

    @property
    def data_ranks(self) -> int:
        """Shares into which the samples of a batch are spread: those who split matrices or sequences work on one together."""
        return self.trainer_ranks // (self.fsdp.tp_size * self.fsdp.cp_size)


LIVE_KNOBS: dict[str, str] = {
    "actor.adam.lr": "learning rate",
    "train.max_staleness": "staleness bound",
    "algo.advantage.is_correction_threshold": "importance-sampling band",
    "rollout.temperature": "sampling temperature",
}
