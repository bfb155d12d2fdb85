"""What every actor is started with."""

import json

import pytest
from huggingface_hub import constants

from engine.specs import local_model


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
