"""Staging a model and data for nodes without network: from this machine, from a hub, and from the hub's cache."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.config import Config
from engine.flags import resolve
from molt_tui.errors import MoltError
from molt_tui.services.slurm import stage

COMMIT = "a" * 40
WEIGHTS = {"model-00001-of-00002.safetensors": b"1" * 100, "model-00002-of-00002.safetensors": b"2" * 50}
INDEX = json.dumps({"weight_map": {"a": next(iter(WEIGHTS)), "b": list(WEIGHTS)[1]}}).encode()
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"not wanted",
    "model.safetensors.index.json": INDEX,
    **WEIGHTS,
}


class Hub(BaseHTTPRequestHandler):
    """The three requests of the hub's client: the revision, the list of files, a file. Knows one model, org/model."""

    protocol_version = "HTTP/1.1"
    files = FILES

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models/org/model/revision/main":
            self.answer(
                json.dumps({"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}).encode()
            )
        elif path == f"/api/models/org/model/tree/{COMMIT}":
            rows = [{"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for n, b in FILES.items()]
            self.answer(json.dumps(rows).encode())
        elif path.startswith(f"/org/model/resolve/{COMMIT}/") and path.rpartition("/")[2] in FILES:
            self.answer(FILES[path.rpartition("/")[2]])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": str(len(body)),
            "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    server.server_close()


def config(model: str) -> Config:
    tree, wrong = resolve({}, {"actor.model_name_or_path": [model], "slurm.python": [sys.executable]})
    assert not wrong
    return tree


def test_what_is_local_is_copied(tmp_path):
    model, data = tmp_path / "m", tmp_path / "d.jsonl"
    model.mkdir()
    (model / "config.json").write_text("{}")
    data.write_text("{}\n")
    tree = config(str(model))
    tree = tree.model_copy(update={"data": tree.data.model_copy(update={"prompt_dataset": (str(data), "reasoning-gym:x")})})
    assert stage(tree, tmp_path / "to") == [f"--actor.model_name_or_path {tmp_path}/to/models/m",
                                            f"--data.prompt_dataset {tmp_path}/to/data/d.jsonl reasoning-gym:x"]  # fmt: skip
    assert (tmp_path / "to/models/m/config.json").exists() and (tmp_path / "to/data/d.jsonl").exists()


def test_a_model_of_the_hub(hub, tmp_path, monkeypatch):
    folder = tmp_path / "to" / "models" / "org--model"
    assert stage(config("org/model"), tmp_path / "to") == [f"--actor.model_name_or_path {folder}"]
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == {
        n: b for n, b in FILES.items() if n != "README.md"
    }
    with pytest.raises(MoltError, match=r"staging failed: .* at org/nothing: "):
        stage(config("org/nothing"), tmp_path / "to")


def test_a_model_in_the_hub_s_cache(hub, tmp_path, monkeypatch):
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=tmp_path / "hf" / "hub", endpoint=f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = tmp_path / "to" / "models" / "org--model"
    assert stage(config("org/model"), tmp_path / "to") == [f"--actor.model_name_or_path {folder}"]
    assert (folder / "config.json").read_bytes() == b"{}" and not (folder / "config.json").is_symlink()
    (snapshot,) = (tmp_path / "hf/hub/models--org--model/snapshots").iterdir()
    (snapshot / list(WEIGHTS)[1]).unlink()
    with pytest.raises(MoltError, match=r"incomplete: .*model-00002-of-00002\.safetensors"):
        stage(config("org/model"), tmp_path / "again")
