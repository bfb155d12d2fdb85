"""The trainer on a GPU: what a step says, padded and packed, in fp32 and bf16."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "unit" / "train"))
from helpers import config, order, rollouts, save_tiny

from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPE = {"hidden_size": 256, "head_dim": 64, "moe_intermediate_size": 64}


def step(path, dtype="fp32", packed=False, offload="none", device="cuda"):
    """Metrics of one training step."""
    fsdp = {"param_dtype": dtype, "packing_samples": packed, "offload": offload}
    trainer = Trainer(get=lambda references: references)
    trainer.setup(TrainerSpec(config(fsdp=fsdp, train={"routing_replay": True}), path, device=device))
    return trainer.train(order(rollouts(8))).metrics


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("moe"), **SHAPE)


@pytest.fixture(scope="module")
def expected(path):
    """The same by plain transformers on the CPU, in a process of its own: a group of ranks has one kind of device."""
    code = f"from test_trainer import *; print(json.dumps(step({path!r}, device='cpu'), default=str))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True,
                          env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("dtype", "packed", "offload", "tolerance"), [
    ("fp32", False, "none", 1e-3), ("fp32", True, "none", 1e-3), ("bf16", False, "none", 0.05), ("bf16", True, "none", 0.05),
    ("fp32", False, "optimizer", 1e-3),
])  # fmt: skip
def test_a_step_is_that_of_transformers_on_the_cpu(path, expected, dtype, packed, offload, tolerance):
    metrics = step(path, dtype, packed, offload)
    assert metrics["routing/replayed_mismatch_frac"] == 0
    for key in ("loss/policy", "optim/grad_norm", "offpolicy/k3_kl"):
        assert metrics[key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance), key
