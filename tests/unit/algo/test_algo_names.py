import math
import subprocess
import sys
from itertools import product

import pytest
from test_correction import ALLOWED

from engine.algo import names
from engine.algo.advantage import ESTIMATORS
from engine.algo.correction import DIVERGENCES
from engine.algo.loss import AGGREGATIONS, POLICY_LOSSES


def test_names_equal_the_registries():
    assert set(names.ESTIMATOR_NAMES) == {*ESTIMATORS, "own"}
    assert not set(names.GROUP_ESTIMATORS) & set(names.TOKEN_REWARD_ESTIMATORS)
    assert {*names.GROUP_ESTIMATORS, *names.TOKEN_REWARD_ESTIMATORS} == set(names.ESTIMATOR_NAMES)
    assert set(names.LOSS_MODES) == set(POLICY_LOSSES)
    assert set(names.AGGREGATIONS) == set(AGGREGATIONS)
    assert set(names.GATINGS) == {"ratio", *DIVERGENCES}


def test_names_do_not_import_torch():
    check = "import engine.algo.names, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("combination", list(product(names.LEVELS, names.MODES, names.GATINGS)), ids="-".join)
def test_exactly_the_defined_combinations_are_allowed(combination):
    problem = names.forbidden_correction(*combination, (-math.inf, 5.0))
    assert (problem is None) == (combination[0] == "off" or combination in ALLOWED)
    assert problem is None or "\n" not in problem


@pytest.mark.parametrize(
    ("gating", "threshold", "message"),
    [
        ("ratio", (0.5, 5.0), None),
        ("ratio", (-math.inf, 5.0), None),
        ("ratio", (5.0, 0.5), "low must be below high"),
        ("ratio", (1.0, 1.0), "low must be below high"),
        ("ratio", (-math.inf, 0.0), "above 0"),
        ("binary_kl", (-math.inf, 0.005), None),
        ("binary_kl", (0.0, 0.005), None),
        ("binary_kl", (0.5, 5.0), "one upper bound"),
        ("tv", (0.1, 0.2), "one upper bound"),
    ],
)
def test_thresholds(gating, threshold, message):
    problem = names.forbidden_correction("token", "mask", gating, threshold)
    assert problem is None if message is None else message in problem


def test_level_off_needs_no_threshold():
    assert names.forbidden_correction("off", "mask", "ratio", (5.0, 0.5)) is None


@pytest.mark.parametrize(
    ("mode", "clip", "dual_clip", "message"),
    [
        ("ppo", (0.2, 0.28), 3.0, None),
        ("gspo", (0.2, 0.2), 3.0, "ppo alone"),
        ("ppo", (1.5, 0.2), None, "low in [0, 1)"),
        ("cispo", (0.2, 0.2), None, "at least 1"),
        ("cispo", (0.2, 2.0), None, None),
    ],
)
def test_clip_ranges(mode, clip, dual_clip, message):
    problem = names.forbidden_loss(mode, clip, dual_clip)
    assert problem is None if message is None else message in problem
