"""Whole runs on real Ray, vLLM and FSDP2: a MoE with everything on, and a dense model in exact arithmetic."""

import gzip
import json
import math

import pytest

from engine.metrics import describe

NUMBERS = "reasoning-gym:number_sorting?min_numbers=3&max_numbers=5&max_decimals=0&min_value=0&max_value=9"
SMALL = ("--rollout.batch_size", "8", "--rollout.n_samples_per_prompt", "4", "--tiny.warmup_steps", "20",
         "--data.prompt_dataset", f"{NUMBERS}&size=100&seed=1",
         "--eval.dataset", f"{NUMBERS}&size=20&seed=10000",
         "--train.probe_every", "1", "--eval.steps", "-1")  # fmt: skip


def finite(value) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, int | float) and math.isfinite(v) for v in values)


def test_a_moe_run_with_staleness_correction_and_replay(start_run):
    live = start_run("demo", *SMALL, "--train.max_steps", "6", "--train.max_staleness", "2", "--trace.rollouts_per_step", "3")
    assert live.end() == 0, live.log()
    steps = live.steps()
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    bound = 2
    for step, event in steps.items():
        metrics = event["metrics"]
        assert all(describe(key) for key in metrics), [k for k in metrics if not describe(k)]
        assert all(finite(v) for k, v in metrics.items() if not k.endswith("/worst")), metrics
        assert event["version"] == step and len(event["prompts"]) == 8
        assert metrics["staleness/max"] <= bound
        assert sum(metrics["staleness/hist"]) > 0
        assert metrics["routing/replayed_mismatch_frac"] == 0 and metrics["routing/coverage_frac"] > 0.9
        assert metrics["queue/depth"] + metrics["queue/in_flight_groups"] <= metrics["queue/capacity"] == 8 * (bound + 1)
        assert metrics["sync/bytes"] > 0 and metrics["engine/version/min"] == step
        assert metrics["time/unaccounted_frac"] <= 0.05
    assert any(e["metrics"]["routing/mismatch_frac"] > 0 for e in steps.values())
    assert any(e["metrics"]["staleness/mean"] > 0 for e in steps.values())
    trained = [p for e in steps.values() for p in e["prompts"]]
    assert len(set(trained)) == len(trained) == 48
    before, after = live.evals()
    assert before["metrics"]["eval/number_sorting/version"] == 0 and after["metrics"]["eval/number_sorting/version"] == 6
    assert live.status().phase == "completed" and live.exit(1).reason == "completed"
    assert not live.processes()
    check_trace(live.run.rollouts / "1-000003.jsonl.gz")


def check_trace(path):
    rollouts = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert 1 <= len(rollouts) <= 3
    for rollout in rollouts:
        (segment,) = rollout["segments"]
        length = len(segment["token_ids"])
        lists = ("pieces", "mask", "logprobs", "versions", "train_logprobs", "kept", "routing_mismatch")
        assert all(len(segment[name]) == length for name in lists)
        assert 0 < sum(segment["mask"]) < length
        assert all((v >= 0) == bool(m) for v, m in zip(segment["versions"], segment["mask"]))
        assert "=" in segment["pieces"]


def test_a_dense_run_in_fp32_is_synchronous_and_exact(start_run):
    live = start_run("demo", *SMALL, "--actor.model_name_or_path", "tiny:qwen3", "--train.routing_replay", "false",
                     "--vllm.dtype", "float32", "--train.max_staleness", "0", "--train.max_steps", "10",
                     "--actor.num_gpus_per_node", "2")  # fmt: skip
    assert live.end() == 0, live.log()
    steps = live.steps()
    assert len(steps) == 10
    for event in steps.values():
        metrics = event["metrics"]
        assert metrics["staleness/max"] == 0 and metrics["staleness/hist"] == [sum(metrics["staleness/hist"])]
        assert metrics["is/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert metrics["mismatch/k3_kl"] < 1e-10 and metrics["mismatch/max_prob_diff"] < 1e-5
        assert "routing/mismatch_frac" not in metrics
        assert metrics["queue/capacity"] == 8
    assert steps[10]["metrics"]["optim/grad_norm"] > 0


@pytest.mark.long
def test_evaluation_alone_trains_nothing(start_run):
    live = start_run("demo", *SMALL, "--eval.eval_only", "--eval.temperature", "0.8", "--eval.n_samples_per_prompt", "4")
    assert live.end() == 0, live.log()
    (event,) = live.evals()
    found = {key.removeprefix("eval/number_sorting/"): value for key, value in event["metrics"].items()}
    assert found["rollouts"] == 80 and found["version"] == 0
    assert 0 <= found["pass_at_1"] <= found["pass_at_2"] <= found["pass_at_4"] <= 1
    assert not live.steps() and live.status().phase == "completed"
