"""The one-line verdict: each rule against a hand-made situation."""

import pytest

from molt_tui.verdict import RULES, Facts, headline, judge

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
        (facts(optim__skipped=1), "skipped", "step skipped"),
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


def test_a_finished_run_is_not_blamed_for_its_last_metrics():
    assert [v.rule for v in judge(Facts("failed", metrics={"loss/policy": float("nan")}))] == ["failed"]


def test_absent_metrics_never_read_as_zero():
    assert not {v.rule for v in judge(facts())} & {"all-masked", "generation-bound", "trainer-bound", "balanced"}


def test_one_odd_step_does_not_change_the_verdict():
    metrics = {"time/trainer_idle_frac": 0.8, "time/rollout_idle_frac": 0.1}
    recent = {"time/trainer_idle_frac": [0.05, float("nan"), 0.05, 0.02, 0.8], "time/rollout_idle_frac": [0.1] * 5}
    assert headline(Facts(**RUNNING, metrics=metrics)).rule == "generation-bound"
    assert headline(Facts(**RUNNING, metrics=metrics, recent=recent)).text == "balanced: trainer idle 23 %, engines idle 10 %"


def test_labels_and_lists_are_not_numbers():
    assert headline(facts(engine__kv_frac__worst="engine 2", staleness__hist=[1, 2])).rule == "running"


def test_every_rule_says_what_healthy_looks_like():
    assert all(rule.healthy for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
