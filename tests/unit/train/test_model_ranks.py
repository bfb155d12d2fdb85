"""Critic, reference and teacher: results do not depend on ranks, micro-batches, packing or order (1e-5 relative in fp32)."""

import numpy as np
import pytest
from model_ranks import CASES, PACKED, train_two

TOLERANCE = 1e-5
WAYS = [(way, case) for way in ("two ranks", "small micro-batches", "another order") for case in CASES]
WAYS += [(way, case) for way in ("packed", "sequences split") for case in PACKED]


@pytest.fixture(scope="module")
def runs(two_rank_run, layout):
    paths = two_rank_run.paths
    found = {
        "one rank": {case: train_two(case, paths, budget=1000) for case in CASES},
        "small micro-batches": {case: train_two(case, paths, budget=20) for case in CASES},
        "packed": {case: train_two(case, paths, budget=60, packed=True) for case in PACKED},
        "another order": {case: train_two(case, paths, budget=50, shuffled=True) for case in CASES},
    }
    both = two_rank_run.results("models")
    assert all(both[0][case]["metrics"] == both[1][case]["metrics"] for case in CASES)
    return found | {"two ranks": both[0], "sequences split": two_rank_run.results("sequences")[0]}


def far(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("way", "case"), WAYS)
def test_results_do_not_depend_on_how_they_were_computed(runs, way, case):
    actual, expected = runs[way][case], runs["one rank"][case]
    assert actual["measured"].keys() == expected["measured"].keys()
    for kind in (0, 1):  # token rewards, values
        pairs = [(actual["measured"][key][kind], row[kind]) for key, row in expected["measured"].items() if row[kind] is not None]
        if pairs:
            ours, theirs = map(np.concatenate, zip(*pairs))
            assert theirs.any() and far(ours, theirs) < TOLERANCE
    assert len(actual["gradients"]) == len(expected["gradients"]) == (8 if case.startswith("critic") else 4)
    for ours, theirs in zip(actual["gradients"], expected["gradients"]):
        assert far(ours.numpy(), theirs.numpy()) < TOLERANCE
    for ours, theirs in zip(actual["metrics"], expected["metrics"]):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=TOLERANCE, abs=1e-7), key


def test_the_cases_measure_what_they_are_about(runs):
    measured = {case: list(runs["one rank"][case]["measured"].values()) for case in CASES}
    rewards, values = zip(*measured["critic and KL in the reward"])
    assert all(r.any() for r in rewards) and all(v.any() for v in values) and len(rewards) == 20
    assert not measured["KL in the loss"] and runs["one rank"]["KL in the loss"]["metrics"][0]["loss/kl"] > 0
    assert all(v is None for _, v in measured["distillation"])
