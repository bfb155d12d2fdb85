import random
import shutil
import subprocess

import numpy as np
import pytest
import torch
from helpers import config, order, rollouts, save_tiny

from engine.train.actor import Trainer
from engine.train.checkpoint import CheckpointError, complete_checkpoints, latest_checkpoint, prune_checkpoints
from engine.train.plan import TrainerSpec
from engine.train.weights import gathered_weights


@pytest.fixture(scope="module")
def model_path(tmp_path_factory, layout):
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny", tie=True)


def trainer(model_path, offload="none") -> Trainer:
    made = Trainer(get=lambda references: references)
    actor = {"adam": {"lr": 1e-2}, "lr_scheduler": "cosine"}
    sections = {"fsdp": {"offload": offload}, "train": {"routing_replay": True}, "actor": actor}
    made.setup(TrainerSpec(config(**sections), model_path, total_steps=6))
    return made


def train(made: Trainer, steps: range) -> list[dict]:
    return [made.train(order(rollouts(6, seed=s), per_step=3, seed=s)).metrics for s in steps]


@pytest.mark.parametrize(("before", "offload"), [(0, "none"), (2, "none"), (2, "optimizer")])
def test_resuming_is_bitwise_the_same(model_path, tmp_path, before, offload):
    first = trainer(model_path, offload)
    train(first, range(before))
    first.save(str(tmp_path / "step-000002"), b"queue")
    random_numbers = (torch.rand(3), np.random.rand(3), random.random())
    metrics = train(first, range(10, 12))

    second = trainer(model_path, offload)
    train(second, range(20, 21))
    second.set_live({"actor.adam.lr": 5.0})
    assert second.load(str(tmp_path / "step-000002")) == b"queue"
    again = (torch.rand(3), np.random.rand(3), random.random())
    assert torch.equal(random_numbers[0], again[0]) and (random_numbers[1] == again[1]).all()
    assert random_numbers[2] == again[2]
    assert train(second, range(10, 12)) == metrics
    resumed = dict(gathered_weights(second.policy.lm, torch.float32))
    for name, tensor in gathered_weights(first.policy.lm, torch.float32):
        assert torch.equal(tensor, resumed[name]), name


def test_saving_does_not_change_training(model_path, tmp_path):
    saved, undisturbed = trainer(model_path), trainer(model_path)
    saved.save(str(tmp_path / "step-000000"))
    assert train(saved, range(2)) == train(undisturbed, range(2))
    weights = dict(gathered_weights(saved.policy.lm, torch.float32))
    assert all(torch.equal(weights[n], t) for n, t in gathered_weights(undisturbed.policy.lm, torch.float32))


def test_unmarked_checkpoints_are_refused_and_ignored(model_path, tmp_path):
    made = trainer(model_path)
    for step in (1, 2):
        made.save(str(tmp_path / f"step-{step:06d}"))
    (tmp_path / "step-000002" / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match="completion mark"):
        made.load(str(tmp_path / "step-000002"))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000001"


def test_a_save_that_dies_leaves_nothing_that_counts(model_path, tmp_path, monkeypatch):
    made = trainer(model_path)
    monkeypatch.setattr(made, "save_hf", lambda folder: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        made.save(str(tmp_path / "step-000001"), hf=True)
    assert complete_checkpoints(tmp_path) == []
    made.save(str(tmp_path / "step-000001"))
    made.save(str(tmp_path / "step-000001"), b"again")
    assert made.load(str(tmp_path / "step-000001")) == b"again"
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_pruning_keeps_the_newest_and_does_not_count_unfinished_ones(tmp_path):
    for step in range(5):
        (tmp_path / f"step-{step:06d}").mkdir()
        if step != 3:
            (tmp_path / f"step-{step:06d}" / "COMPLETE").touch()
    assert [p.name for p in prune_checkpoints(tmp_path, 2)] == ["step-000000", "step-000001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000003", "step-000004"]
    assert prune_checkpoints(tmp_path / "absent", 2) == [] and latest_checkpoint(tmp_path / "absent") is None


def test_saving_a_step_again_has_a_complete_checkpoint_at_every_moment(model_path, tmp_path, monkeypatch):
    made, path = trainer(model_path), tmp_path / "step-000001"
    made.save(str(path), b"first")
    complete_at_removal = []
    remove = shutil.rmtree

    def removing(folder, **options):
        complete_at_removal.append(complete_checkpoints(tmp_path))
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", removing)
    made.save(str(path), b"second")
    assert complete_at_removal and all(found == [path] for found in complete_at_removal)
    assert made.load(str(path)) == b"second" and [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_pruning_removes_what_killed_saves_left(tmp_path):
    for name in ("step-000002", ".step-000001.partial", ".step-000001.earlier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "COMPLETE").touch()
    assert prune_checkpoints(tmp_path, 2) == []
    assert [p.name for p in tmp_path.iterdir()] == ["step-000002"]


def test_a_full_disk_is_called_by_its_name(model_path, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "molt-test", disk], capture_output=True).returncode:
        pytest.skip("no right to mount a file system here")
    try:
        with pytest.raises(OSError, match="No space left on device"):
            trainer(model_path).save(str(disk / "step-000000"))
        assert latest_checkpoint(disk) is None
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
