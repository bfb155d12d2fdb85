"""Every way the trainer can lay out a model, on as many GPUs as there are (one or two): one JSON line per way.

    python -m tests.gpu.trainer_modes [cpu]

Each way trains the same two batches of a small random Qwen3-MoE with replay in bf16; loss, gradient norm and scores must be
those of the plain way within what bf16 rounds. About two minutes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "train"))

WAYS = {
    "plain": {},
    "transformers' class": {"class": "transformers"},
    "recomputed": {"actor": {"gradient_checkpoint": "full"}},
    "packed": {"fsdp": {"packing_samples": True}},
    "adam on the host": {"fsdp": {"offload": "optimizer"}},
    "all on the host": {"fsdp": {"offload": "full"}},
    "experts shared": {"fsdp": {"ep_size": 2}},
    "experts shared, recomputed, packed": {
        "fsdp": {"ep_size": 2, "packing_samples": True}, "actor": {"gradient_checkpoint": "full"}},
}  # fmt: skip
SHAPE = dict(hidden_size=256, head_dim=64, intermediate_size=512, moe_intermediate_size=128, layers=4, mlp_only_layers=[0])


def run_way(changes: dict, path: str, folder: Path, rank: int, world: int, port: int, device: str) -> dict:
    import torch
    from helpers import config, order, rollouts

    from engine.train import model
    from engine.train.actor import Trainer
    from engine.train.plan import TrainerSpec
    from engine.train.weights import gathered_weights

    sections = {name: dict(values) for name, values in changes.items() if name != "class"}
    dtypes = ("bf16", "bfloat16") if device == "cuda" else ("fp32", "float32")
    sections["fsdp"] = {"param_dtype": dtypes[0]} | sections.get("fsdp", {})
    settings = config(train={"routing_replay": True}, vllm={"dtype": dtypes[1]}, **sections)
    trainer = Trainer(get=lambda references: references)
    own_class = patch.object(model, "automodel_has_class", lambda _path: (False, "left out"))
    with own_class if "class" in changes else nullcontext():
        trainer.setup(TrainerSpec(settings, path, rank=rank, world=world, port=port, device=device))
    kinds = {type(m).__module__.split(".")[0] for m in trainer.policy.lm.modules()}
    reports = [trainer.train(order(rollouts(24, seed=s, layers=3), ranks=world, budget=90, seed=s)) for s in range(2)]
    before = trainer.score([[1, 2, 3, 4], [5, 6, 7]])
    trainer.save(str(folder / "step-000001"))
    trainer.load(str(folder / "step-000001"))
    after = trainer.score([[1, 2, 3, 4], [5, 6, 7]])
    found = {key: [r.metrics.get(key) for r in reports] for key in ("loss/policy", "optim/grad_norm", "perf/gpu_mem_peak_gb")}
    found["automodel"] = "nemo_automodel" in kinds
    found["replayed_mismatch"] = [r.metrics["routing/replayed_mismatch_frac"] for r in reports]
    found["scores"] = [float(x) for s in before for x in s]
    found["reloaded_equal"] = all((a == b).all() for a, b in zip(before, after, strict=True))
    found["weights"] = sum(float(t.double().sum()) for _, t in gathered_weights(trainer.policy.lm, torch.float32))
    del trainer
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def rank_main(rank: int, world: int, path: str, folder: str, port: int, device: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank) if device == "cuda" else ""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    for name, changes in WAYS.items():
        fsdp = changes.get("fsdp", {})
        if fsdp.get("ep_size", 1) > world or (device == "cpu" and (fsdp.get("ep_size") or fsdp.get("offload") == "full")):
            found = {"skipped": "needs two GPUs"}
        else:
            try:
                found = run_way(changes, path, Path(folder), rank, world, port, device)
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"[:600]}
        if rank == 0:
            print(json.dumps({"way": name, "ranks": world} | found), flush=True)


def main() -> None:
    import torch
    import torch.multiprocessing as multiprocessing
    from helpers import save_tiny

    from engine.placement import free_port

    device = "cpu" if sys.argv[1:] == ["cpu"] else "cuda"
    world = min(2, torch.cuda.device_count()) if device == "cuda" else 2
    with tempfile.TemporaryDirectory() as folder:
        path = save_tiny(Path(folder) / "model", **SHAPE)
        multiprocessing.spawn(rank_main, args=(world, path, folder, free_port(), device), nprocs=world)


if __name__ == "__main__":
    main()
