"""Parallel sizes and the Slurm section are checked before anything starts."""

from __future__ import annotations

import pytest

from engine.cluster_rules import CLUSTER_RULES, split_faults
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


def test_splits_of_matrices_and_rows_must_fit_the_ranks_and_each_other():
    eight = {"actor__num_gpus_per_node": "8"}
    assert problems(fsdp__tp_size="2", fsdp__cp_size="4", fsdp__packing_samples="true", **eight) == []
    (found,) = problems(fsdp__tp_size="4", fsdp__cp_size="4", fsdp__packing_samples="true", **eight)
    assert found.startswith("--fsdp.tp_size: 16 (tp_size x cp_size) does not divide 1 x 8 trainer ranks")
    (found,) = problems(fsdp__tp_size="2", fsdp__ep_size="2", **eight)
    assert found == "--fsdp.tp_size: ranks that share experts split no matrix; use 1"
    assert problems(fsdp__cp_size="2", **eight) == ["--fsdp.cp_size: splits packed rows alone; add --fsdp.packing_samples"]
    (found,) = problems(fsdp__cp_size="2", algo__advantage__estimator="gae", **eight)
    assert "critic" in found and found.endswith("use 1")


@pytest.mark.parametrize(
    ("tp", "cp", "expected"),
    [
        (4, 2, []),
        (8, 1, ["fsdp.tp_size: 8 does not divide the model's num_key_value_heads (4); use one that does"]),
        (2, 3, ["fsdp.cp_size: 3 does not divide the 4 attention heads of a rank; use one that does"]),
    ],
)
def test_heads_must_be_shared_out_evenly(tp, cp, expected):
    model = {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 48}
    assert [f"{flag}: {fault}" for flag, fault in split_faults(model, tp, cp)] == expected


def test_a_model_with_experts_shares_them_instead():
    ((flag, fault),) = split_faults({"num_attention_heads": 8, "num_experts": 8}, 2, 1)
    assert flag == "fsdp.tp_size" and "--fsdp.ep_size" in fault
    assert list(split_faults({"num_attention_heads": 8, "num_experts": 8}, 1, 8)) == []
    assert list(split_faults({}, 7, 7)) == []


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
