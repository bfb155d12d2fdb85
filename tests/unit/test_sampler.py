"""The engine's parts that need no vLLM."""

import os

from engine import compat
from engine.rollout.engine import stamp_versions


def test_the_environment_is_as_before_whatever_ran_inside():
    before = dict(os.environ)
    with compat.environment({"MOLT_PROBE": "1"}):
        assert os.environ["MOLT_PROBE"] == "1"
        os.environ["LD_PRELOAD"] = "left behind"
    assert dict(os.environ) == before


def test_a_cpu_core_runs_the_model_itself_on_the_given_cores():
    one = compat.vllm_environment("cpu", 1, [0, 1, 2], eager=True)
    assert one["OMP_NUM_THREADS"] == "3" and one["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    two = compat.vllm_environment("cpu", 2, [0, 1, 2, 3], eager=False)
    assert two["OMP_NUM_THREADS"] == "2"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in two and "TORCH_COMPILE_DISABLE" not in two


def test_versions_change_at_the_borders():
    assert stamp_versions(5, 3, [(2, 4), (4, 5)]) == [3, 3, 4, 4, 5]
    assert stamp_versions(3, 0, [(0, 1)]) == [1, 1, 1]
    assert stamp_versions(2, 0, [(2, 1), (2, 2)]) == [0, 0]
    assert stamp_versions(3, 0, [(1, 1), (1, 2)]) == [0, 2, 2]
    assert stamp_versions(0, 0, [(0, 1)]) == []
