"""The sampler of the Slurm tests is called as the real one is: without this a change of one shows only on a cluster."""

from __future__ import annotations

import inspect

import pytest

from engine.rollout.engine import VllmEngine
from tests.slurm.scripted_engine import ScriptedSampler

CALLED = ("start", "init_transfer", "generate", "abort", "pause", "update_weights", "resume", "score", "stats", "post", "collect",
          "shutdown")  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_the_scripted_sampler_has_the_engine_s_methods(name):
    real, scripted = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (VllmEngine, ScriptedSampler))
    assert scripted == real
