"""One long run under control: every command, a stop that saves, kill -9 of everything, resume, an exact ledger."""

import pytest

NUMBERS = "reasoning-gym:number_sorting?min_numbers=3&max_numbers=5&max_decimals=0&min_value=0&max_value=9"
PROMPTS, BATCH = 120, 6
FLAGS = ("--rollout.batch_size", str(BATCH), "--rollout.n_samples_per_prompt", "4", "--tiny.warmup_steps", "20",
         "--data.prompt_dataset", f"{NUMBERS}&size={PROMPTS}&seed=1",
         "--eval.dataset", f"{NUMBERS}&size=10&seed=10000",
         "--train.num_episodes", "1", "--train.max_steps", "none", "--ckpt.save_steps", "3", "--eval.steps", "-1",
         "--actor.lr_scheduler", "constant", "--train.max_staleness", "1")  # fmt: skip


@pytest.mark.long
def test_commands_kill_and_resume(start_run):
    live = start_run("demo", *FLAGS)
    live.wait_for("step 2", lambda: 2 in live.steps())

    assert live.command("pause")["ok"]
    paused = live.command("checkpoint")
    assert paused["ok"] and "saved step" in paused["message"]
    live.wait_for("status paused", lambda: live.status().phase == "paused", 10)
    held = max(live.steps())
    assert live.command("evaluate")["message"].startswith("eval/")
    assert max(live.steps()) == held
    assert live.command("resume")["ok"]

    answer = live.command(
        "set", **{"actor.adam.lr": "0.0005", "train.max_staleness": "0", "algo.advantage.is_correction_threshold": "0.5 2"}
    )
    assert answer["ok"] and "actor.adam.lr = 0.0005" in answer["message"]
    refused = live.command("set", **{"rollout.batch_size": "4"})
    assert not refused["ok"] and "actor.adam.lr" in refused["message"]
    live.wait_for("the new learning rate", lambda: any(e["metrics"].get("optim/lr") == 0.0005 for e in live.steps().values()))

    at = max(live.steps())
    live.wait_for("an interval checkpoint", lambda: any(e["kind"] == "checkpoint" and e["step"] > at for e in live.events))
    live.kill()
    assert not live.processes()

    live.supervise()
    first = live.wait_for("a step of the second attempt", lambda: [e for e in live.events if e["attempt"] == 2
                                                                   and e["kind"] == "metrics"])  # fmt: skip
    saved = max(e["step"] for e in live.events if e["kind"] == "checkpoint" and e["attempt"] == 1)
    assert min(e["step"] for e in first) == saved + 1, "it goes on from the checkpoint"
    assert first[0]["metrics"]["optim/lr"] == 0.0005, "live settings survive"
    assert first[0]["metrics"]["queue/capacity"] == BATCH
    assert live.command("stop_after_step")["ok"]
    assert live.end() == 130
    assert live.exit(2).reason == "cancelled" and live.exit(2).resumable
    assert not live.processes()

    live.supervise()
    assert live.end() == 0, live.log()
    steps = live.steps()
    assert sorted(steps) == list(range(1, PROMPTS // BATCH + 1))
    ledger = sorted(p for e in steps.values() for p in e["prompts"])
    assert len(ledger) == PROMPTS == len(set(ledger)), "every prompt is trained exactly once"
    assert all(e["metrics"].get("staleness/max", 0) <= 1 for e in steps.values())
    assert live.exit(3).reason == "completed"
