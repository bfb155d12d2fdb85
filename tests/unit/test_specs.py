"""What every actor is started with."""

import json
import os

import pytest
from huggingface_hub import constants

from engine.config import Config
from engine.specs import local_model, pinned_cores


def test_a_hub_name_becomes_the_directory_of_its_files(tmp_path, monkeypatch):
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"num_experts": 8}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_model("org/model") == snapshot and local_model(str(snapshot)) == snapshot
    with pytest.raises(OSError, match="snapshot"):
        local_model("org/nothing")


@pytest.mark.parametrize(
    ("cores", "engines", "ranks", "expected"),
    [
        (range(5), 1, 2, ([[0, 1]], [[2, 4], [3]])),
        (range(4), 3, 1, ([[0], [1], [0]], [[2, 3]])),
        (range(1), 1, 1, ([None], [None])),
    ],
)
def test_cores_are_split_between_sampler_and_trainer(monkeypatch, cores, engines, ranks, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(cores))
    settings = {"vllm": {"num_engines": engines}, "actor": {"num_gpus_per_node": ranks}}
    assert pinned_cores(Config(placement={"pin_cores": True}, **settings)) == expected
    assert pinned_cores(Config(**settings)) == ([None] * engines, [None] * ranks)
