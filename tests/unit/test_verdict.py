"""The one-line verdict: each rule against a hand-made situation."""

import re

import pytest

from molt_tui.facts import Facts, Fault
from molt_tui.verdict import RULES, headline, judge

RUNNING = {"state": "running", "step": 40, "max_steps": 400, "beat_age_s": 1.0}


def facts(**metrics):
    return Facts(**RUNNING, metrics={k.replace("__", "/"): v for k, v in metrics.items()})


@pytest.mark.parametrize(
    ("given", "rule", "words"),
    [
        (facts(time__trainer_idle_frac=0.62, time__rollout_idle_frac=0.02, queue__depth=0, queue__capacity=16),
         "generation-bound", "generation-bound: trainer idle 62 %, queue 0 of 16"),
        (facts(time__wait_batch=6.2, time__step=10.0), "generation-bound", "trainer idle 62 %"),
        (facts(time__trainer_idle_frac=0.02, time__rollout_idle_frac=0.4), "trainer-bound", "engines idle 40 %"),
        (facts(time__trainer_idle_frac=0.08, time__rollout_idle_frac=0.05), "balanced", "trainer idle 8 %"),
        (facts(time__trainer_idle_frac=0.5, time__rollout_idle_frac=0.45), "alternating", "both sides wait in turn"),
        (facts(is__masked_frac=1.0, time__trainer_idle_frac=0.9), "all-masked", "every token is masked at step 40"),
        (facts(is__masked_seq_frac=0.9995), "all-masked", "every sequence is masked"),
        (facts(is__kept_grad_frac=0.0), "all-masked", "removes the whole gradient"),
        (facts(loss__policy=float("nan"), reward__mean=float("inf")), "not-finite",
         "loss/policy is NaN at step 40 (and 1 more)"),
        (facts(optim__skipped=1), "skipped", "steps skipped at step 40"),
        (facts(reward__zero_std_group_frac=0.97), "same-reward", "97 % of groups"),
        (facts(routing__replayed_mismatch_frac=0.003), "replay-leaks", "0.3 %"),
        (facts(), "running", "no step finished yet"),
        (Facts("running", step=3, beat_age_s=25.0), "late-beat", "no heartbeat for 25 s"),
        (Facts("running", step=3, beat_age_s=61.0), "no-beat", "no heartbeat for 61 s"),
        (Facts("queued", beat_age_s=900.0), "queued", "waiting in the queue"),
        (Facts("paused", detail="by ada"), "paused", "paused (by ada)"),
        (Facts("completed", step=400, max_steps=400), "completed", "completed: 400 of 400 steps"),
        (Facts("failed", step=7, detail="reward is missing"), "failed", "failed at step 7: reward is missing"),
        (Facts("lost", step=7), "lost", "lost at step 7"),
        (Facts("cancelled", step=7), "cancelled", "stopped at step 7"),
    ],
)  # fmt: skip
def test_headline_names_the_situation(given, rule, words):
    verdict = headline(given)
    assert verdict.rule == rule
    assert words in verdict.text


def test_a_gradient_that_is_not_finite_is_not_called_nothing_to_train():
    assert [v.rule for v in judge(facts(optim__skipped=1, optim__grad_norm=float("nan")))][:1] == ["not-finite"]
    assert "skipped" not in {v.rule for v in judge(facts(optim__skipped=1, optim__grad_norm=float("inf")))}
    assert headline(facts(optim__skipped=1, optim__grad_norm=0.5)).rule == "skipped"


def test_a_full_disk_promises_only_a_checkpoint_that_is_there():
    full = "OSError: [Errno 28] No space left on device"
    assert headline(Facts("failed", detail=full)).action == "free space on its disk; no checkpoint was saved: r launches it anew"
    assert "p goes on from the checkpoint of step 50" in headline(Facts("failed", detail=full, last_checkpoint=50)).action


def test_how_a_run_ended_comes_first_then_what_its_last_steps_still_say():
    metrics = {"loss/policy": float("nan"), "time/trainer_idle_frac": 0.9}
    assert [v.rule for v in judge(Facts("failed", metrics=metrics))] == ["failed", "not-finite"]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.lasts], ids=lambda rule: rule.name)
def test_nobody_is_told_to_stop_or_pause_a_run_that_has_ended(rule):
    action = rule.action if isinstance(rule.action, str) else rule.action(Facts("failed", step=40))
    assert not re.search(r"\b[xpc]\b", action)


def test_absent_metrics_never_read_as_zero():
    assert not {v.rule for v in judge(facts())} & {"all-masked", "generation-bound", "trainer-bound", "balanced"}


def test_one_odd_step_does_not_change_the_verdict():
    metrics = {"time/trainer_idle_frac": 0.8, "time/rollout_idle_frac": 0.1}
    trainer = enumerate([0.05, float("nan"), 0.05, 0.02, 0.8])
    history = {"time/trainer_idle_frac": list(trainer), "time/rollout_idle_frac": [(i, 0.1) for i in range(5)]}
    assert headline(Facts(**RUNNING, metrics=metrics)).rule == "generation-bound"
    assert headline(Facts(**RUNNING, metrics=metrics, history=history)).text == "balanced: trainer idle 23 %, engines idle 10 %"


def test_labels_and_lists_are_not_numbers():
    assert headline(facts(engine__kv_frac__worst="engine 2", staleness__hist=[1, 2])).rule == "running"


def test_every_rule_says_what_healthy_looks_like():
    assert all(rule.healthy for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def series(values, first=1):
    return [(first + i, value) for i, value in enumerate(values)]


def test_since_when_is_said():
    masked = facts(is__masked_frac=1.0)
    known = Facts(**RUNNING, metrics=masked.metrics, history={"is/masked_frac": series([0.1, 0.2, 1.0, 1.0, 1.0], 36)})
    assert headline(known).text == "every token is masked since step 38: no gradient"
    longer = Facts(**RUNNING, metrics=masked.metrics, history={"is/masked_frac": series([1.0] * 3, 38)})
    assert "since step 38 or before" in headline(longer).text


def test_a_run_without_a_checkpoint_is_not_offered_one():
    assert "r launches it anew" in headline(Facts("failed", step=7)).action
    assert "the checkpoint of step 5" in headline(Facts("failed", step=7, last_checkpoint=5)).action


def test_a_run_that_does_not_step_is_stuck_by_its_own_pace():
    quick = {"history": {"time/step": series([1.0] * 8)}, "metrics": {"time/step": 1.0}}
    assert headline(Facts(**RUNNING, step_age_s=119.0, **quick)).rule == "running"
    assert headline(Facts(**RUNNING, step_age_s=130.0, **quick)).text == "stuck: no step for 2 min at step 40; a step took 1.0 s"
    slow = {"history": {"time/step": series([600.0] * 8)}, "metrics": {"time/step": 600.0}}
    assert headline(Facts(**RUNNING, step_age_s=3000.0, **slow)).rule == "running"


def test_the_time_limit_is_held_against_the_next_checkpoint():
    known = {"metrics": {"time/step": 60.0}, "config": {"ckpt.save_steps": 50}, "last_checkpoint": 0}
    assert headline(Facts(**RUNNING, time_left_s=700.0, **known)).rule == "running"
    late = headline(Facts(**RUNNING, time_left_s=500.0, **known))
    assert late.text == "time limit in 8 min, next checkpoint at step 50 in 10 min: 40 steps at risk"


def test_one_high_gradient_is_no_spike_three_are():
    calm = [2.0 + 0.1 * (i % 5) for i in range(30)]
    once = Facts(**RUNNING, history={"optim/grad_norm": series([*calm, 90.0])})
    thrice = Facts(**RUNNING, history={"optim/grad_norm": series([*calm, 90.0, 60.0, 70.0])})
    assert headline(once).rule == "running"
    assert headline(thrice).text == "gradient norm 70, usual 2.1"


def test_a_full_disk_is_named_whoever_said_it():
    words = "[Errno 28] No space left on device"
    for known in (Facts("failed", detail=words, step=3), Facts(**RUNNING, faults=[Fault("OSError", words, 39)])):
        assert headline(known).rule == "disk"
        assert words in headline(known).text


def test_old_faults_are_forgotten():
    fault = Fault("engine-1", "did not answer", step=19)
    assert headline(Facts(**RUNNING, faults=[fault])).rule == "running"
    assert headline(Facts("running", step=30, faults=[fault])).text == "engine-1 at step 19: did not answer"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("state", ["running", "failed"])
def test_what_to_do_fits_on_a_line_of_80_columns(rule, state):
    action = rule.action if isinstance(rule.action, str) else rule.action(Facts(state, step=150_000, last_checkpoint=150_000))
    assert len(action) <= 80 - 4
