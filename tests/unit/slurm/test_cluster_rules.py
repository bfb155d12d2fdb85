"""Parallel sizes and the Slurm section are checked before anything starts."""

from __future__ import annotations

import pytest

from engine.cluster_rules import CLUSTER_RULES
from engine.flags import resolve


def problems(**flags: str) -> list[str]:
    overrides = {name.replace("__", "."): value.split(" ") for name, value in flags.items()}
    config, wrong = resolve({}, overrides)
    assert not wrong, wrong
    return [f"--{flag}: {message}" for rules in CLUSTER_RULES for broken, flag, message in rules(config) if broken]


def test_defaults_are_sound():
    assert problems() == []


def test_parallel_sizes_need_cuda():
    found = problems(placement__device="cpu", fsdp__ep_size="2", fsdp__offload="optimizer", actor__num_gpus_per_node="2")
    assert found == [
        "--fsdp.ep_size: 2 needs CUDA; use 1 with --placement.device cpu",
        "--fsdp.offload: optimizer needs CUDA; use none with --placement.device cpu",
    ]


def test_sizes_must_divide_the_ranks():
    assert "--fsdp.ep_size: 3 does not divide 1 x 8" in problems(fsdp__ep_size="3", actor__num_gpus_per_node="8")[0]
    assert problems(fsdp__ep_size="256", actor__num_gpus_per_node="8", actor__num_nodes="32") == []


@pytest.mark.parametrize("name", ["tp_size", "cp_size"])
def test_what_the_trainer_cannot_split_is_refused_with_the_reason(name):
    (found,) = problems(**{f"fsdp__{name}": "2"}, actor__num_gpus_per_node="8")
    assert found.startswith(f"--fsdp.{name}: no ") and "use 1" in found


def test_packing_needs_its_own_attention_and_no_critic():
    assert problems(fsdp__packing_samples="true") == []
    (found,) = problems(fsdp__packing_samples="true", fsdp__attn_implementation="te")
    assert "--fsdp.attn_implementation sdpa" in found
    (found,) = problems(fsdp__packing_samples="true", algo__advantage__estimator="gae")
    assert "critic" in found


def test_the_allocation_must_hold_engines_and_trainer():
    base = {"slurm__gpus_per_node": "8", "actor__num_gpus_per_node": "8", "vllm__num_engines": "8"}
    assert "16 GPUs" not in str(problems(**base, slurm__nodes="2"))
    assert problems(**base, slurm__nodes="2") == []
    (found,) = problems(**base, slurm__nodes="1")
    assert found.startswith("--slurm.nodes: 1 x 8 GPUs are 8, but the engines need 8 and the trainer 8")
    assert "fits neither a node of 8 GPUs" in problems(**base, slurm__nodes="13", vllm__tensor_parallel_size="12")[0]
    assert problems(**base, slurm__nodes="17", vllm__tensor_parallel_size="16") == []


@pytest.mark.parametrize(
    ("flag", "value"),
    [("slurm.time", "soon"), ("slurm.mem", "much"), ("slurm.env", "1A=2"), ("slurm.extra", "--output=x"), ("slurm.extra", "-Jx"),
     ("slurm.extra", "mail"), ("slurm.partition", "a\nb")],
)  # fmt: skip
def test_unsound_text_is_refused(flag, value):
    assert problems(**{flag.replace(".", "__"): value})[0].startswith(f"--{flag}: ")


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "aws_secret", "APIKEY"])
def test_a_secret_is_passed_on_by_name_and_its_value_not_repeated(name):
    (found,) = problems(slurm__env=f"{name}=hunter2")
    assert name in found and "hunter2" not in found
    assert problems(slurm__env=name) == [] == problems(slurm__env="TOKENIZERS_PARALLELISM=false")


@pytest.mark.parametrize("time", ["30", "1:00", "04:00:00", "2-00", "2-00:00:00"])
def test_time_limits_as_slurm_writes_them(time):
    assert problems(slurm__time=time) == []
