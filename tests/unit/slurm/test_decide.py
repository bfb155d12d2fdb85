"""What follows the end of an attempt, worked through by hand."""

from __future__ import annotations

import pytest

from slurm.decide import crashes_in_a_row, next_action, reason_of_signal


def end(reason: str, step: int = 0, detail: str = "") -> dict:
    return {"reason": reason, "step": step, "detail": detail}


def act(*records: dict, requeue: bool = True, restarts: int = 2):
    action = next_action(records, requeue=requeue, max_restarts=restarts, first_wait=10.0)
    return action.kind, action.code, action.wait


def test_complete_and_stopped_runs_end_well():
    assert act(end("completed", 5)) == ("end", 0, 0.0)
    assert act(end("cancelled", 5)) == ("end", 0, 0.0)


def test_limits_are_handed_over():
    assert act(end("timeout", 5)) == ("requeue", 0, 0.0)
    assert act(end("preempted", 5)) == ("requeue", 0, 0.0)
    assert act(end("timeout", 5), requeue=False) == ("end", 0, 0.0)


def test_a_limit_too_short_for_any_step_ends_the_run():
    assert act(end("timeout"), end("timeout"))[0] == "requeue"
    assert act(end("timeout"), end("timeout"), end("timeout")) == ("end", 1, 0.0)
    assert act(end("timeout", 0), end("timeout", 3), end("timeout", 3), end("timeout", 3))[0] == "requeue"
    assert act(end("preempted"), end("preempted"), end("preempted"))[0] == "requeue"


def test_crashes_wait_longer_each_time_and_then_end():
    assert act(end("crashed")) == ("restart", 0, 10.0)
    assert act(end("crashed"), end("crashed")) == ("restart", 0, 30.0)
    assert act(end("crashed"), end("crashed"), end("crashed")) == ("end", 1, 0.0)


def test_a_trained_step_renews_the_budget():
    history = [end("crashed", 0), end("crashed", 0), end("crashed", 7)]
    assert crashes_in_a_row(history) == 1
    assert act(*history) == ("restart", 0, 10.0)
    assert crashes_in_a_row([*history, end("crashed", 7)]) == 2


def test_only_the_machinery_is_tried_again():
    assert act(end("failed", 1, "ActorDiedError: the node died"))[0] == "restart"
    assert act(end("failed", 1, "RunFailed: too many rollouts fail")) == ("end", 1, 0.0)


@pytest.mark.parametrize(
    ("signal", "record", "reason"),
    [
        ("SIGUSR1", {"JobState": "RUNNING", "PreemptTime": "None"}, "timeout"),
        ("SIGUSR1", {"JobState": "RUNNING", "PreemptTime": "2026-11-30T10:00:00"}, "preempted"),
        ("SIGUSR1", {}, "timeout"),
        ("SIGTERM", {"JobState": "PENDING", "Restarts": "1"}, "preempted"),
        ("SIGTERM", {"JobState": "COMPLETING", "RunTime": "00:10:00", "TimeLimit": "01:00:00"}, "cancelled"),
        ("SIGTERM", {"JobState": "COMPLETING", "RunTime": "1-00:00:02", "TimeLimit": "1-00:00:00"}, "timeout"),
        ("SIGTERM", {"JobState": "NODE_FAIL"}, "preempted"),
        ("SIGTERM", {"JobState": "CANCELLED"}, "cancelled"),
        ("SIGTERM", {}, "cancelled"),
    ],
)
def test_reasons_of_signals(signal, record, reason):
    assert reason_of_signal(signal, record, 0)[0] == reason
