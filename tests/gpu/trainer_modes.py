"""Every way the trainer can lay out a model, on as many GPUs as there are (one, two or four): one JSON line per way.

    python -m tests.gpu.trainer_modes [cpu] [fp32]

Each way trains the same two batches of a small random Qwen3-MoE with replay, or of a dense Qwen3. `far` is how far its first
gradient is from that of the plain way on one GPU, relative: rounding alone. About three minutes.
"""

from __future__ import annotations

import gc
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
    "rows shared": {"fsdp": {"cp_size": 2, "packing_samples": True}},
    "rows shared, recomputed, all on the host": {
        "fsdp": {"cp_size": 2, "packing_samples": True, "offload": "full"}, "actor": {"gradient_checkpoint": "full"}},
    "experts and rows shared": {"fsdp": {"ep_size": 2, "cp_size": 2, "packing_samples": True}},
    "dense": {"dense": True},
    "matrices split": {"dense": True, "fsdp": {"tp_size": 2}},
    "matrices split, recomputed, packed, adam on the host": {
        "dense": True, "fsdp": {"tp_size": 2, "packing_samples": True, "offload": "optimizer"},
        "actor": {"gradient_checkpoint": "full"}},
    "matrices split, all on the host": {"dense": True, "fsdp": {"tp_size": 2, "offload": "full"}},
    "matrices split, rows shared": {"dense": True, "fsdp": {"tp_size": 2, "cp_size": 2, "packing_samples": True}},
}  # fmt: skip
SHAPE = dict(hidden_size=256, head_dim=64, intermediate_size=512, layers=4)
EXPERTS = dict(moe_intermediate_size=128, mlp_only_layers=[0])


def ranks_needed(changes: dict) -> int:
    fsdp = changes.get("fsdp", {})
    return max(fsdp.get("tp_size", 1) * fsdp.get("cp_size", 1), fsdp.get("ep_size", 1))


def run_way(changes: dict, paths: dict, folder: Path, rank: int, world: int, port: int, device: str, dtype: str) -> dict:
    import torch
    from helpers import config, order, rollouts

    from engine.train import model
    from engine.train.actor import Trainer
    from engine.train.plan import TrainerSpec
    from engine.train.weights import gathered_weights, spelled

    dense = "dense" in changes
    fsdp = {"param_dtype": dtype, **changes.get("fsdp", {})}
    settings = config(
        train={"routing_replay": not dense}, vllm={"dtype": "bfloat16" if dtype == "bf16" else "float32"}, fsdp=fsdp,
        actor={"adam": {"lr": 1e-3}, **changes.get("actor", {}), "num_gpus_per_node": world},
    )  # fmt: skip
    trainer = Trainer(get=lambda references: references)
    own_class = patch.object(model, "automodel_has_class", lambda _path: (False, "left out"))
    with own_class if "class" in changes else nullcontext():
        trainer.setup(TrainerSpec(settings, paths[dense], rank=rank, world=world, port=port, device=device))
    kinds = {type(m).__module__.split(".")[0] for m in trainer.policy.lm.modules()}
    lm, first = trainer.policy.lm, {}

    def capture(*_: object) -> None:
        if not first:
            for name, p in lm.named_parameters():
                whole = p.grad.full_tensor().to("cpu", torch.float32, copy=True)
                first.update(spelled(lm, name.replace("_checkpoint_wrapped_module.", ""), whole))

    trainer.optimizer.register_step_pre_hook(capture)
    layers, shares = None if dense else 3, settings.data_ranks
    reports = [trainer.train(order(rollouts(24, seed=s, layers=layers), ranks=shares, budget=90, seed=s)) for s in range(2)]
    before = trainer.score([[1, 2, 3, 4], [5, 6, 7]])
    trainer.save(str(folder / "step-000001"))
    trainer.load(str(folder / "step-000001"))
    after = trainer.score([[1, 2, 3, 4], [5, 6, 7]])
    found = {key: [r.metrics.get(key) for r in reports] for key in ("loss/policy", "optim/grad_norm", "perf/gpu_mem_peak_gb")}
    found["automodel"] = "nemo_automodel" in kinds
    found["replayed_mismatch"] = [r.metrics.get("routing/replayed_mismatch_frac") for r in reports]
    found["scores"] = [float(x) for s in before for x in s]
    found["reloaded_equal"] = all((a == b).all() for a, b in zip(before, after, strict=True))
    found["weights"] = sum(float(t.double().sum()) for _, t in gathered_weights(lm, torch.float32))
    gradient, reference = torch.cat([first[name].double().flatten() for name in sorted(first)]), folder / f"gradient-{dense}.pt"
    if not reference.exists() and rank == 0:
        torch.save(gradient, reference)
    if rank == 0:
        expected = torch.load(reference)
        found["far"] = float((gradient - expected).norm() / expected.norm())
    return found


def rank_main(rank: int, world: int, paths: dict, folder: str, port: int, device: str, dtype: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank) if device == "cuda" else ""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    for name, changes in WAYS.items():
        fsdp, needed = changes.get("fsdp", {}), ranks_needed(changes)
        if world % needed or (device == "cpu" and (fsdp.get("ep_size") or fsdp.get("offload") == "full")):
            found = {"skipped": f"needs CUDA and {needed} ranks"}
        else:
            try:
                found = run_way(changes, paths, Path(folder), rank, world, port, device, dtype)
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"[:600]}
        gc.collect()  # a trainer is in circles of references
        if rank == 0:
            print(json.dumps({"way": name, "ranks": world, "dtype": dtype} | found), flush=True)


def main() -> None:
    import torch
    import torch.multiprocessing as multiprocessing
    from helpers import save_tiny

    from engine.placement import free_port

    device = "cpu" if "cpu" in sys.argv else "cuda"
    dtype = "fp32" if "fp32" in sys.argv or device == "cpu" else "bf16"
    most = min(4, torch.cuda.device_count()) if device == "cuda" else 2
    with tempfile.TemporaryDirectory() as folder:
        paths = {dense: save_tiny(Path(folder) / str(dense), moe=not dense, **SHAPE, **({} if dense else EXPERTS))
                 for dense in (False, True)}  # fmt: skip
        for world in sorted({1, most}):
            arguments = (world, paths, folder, free_port(), device, dtype)
            multiprocessing.spawn(rank_main, args=arguments, nprocs=world)


if __name__ == "__main__":
    main()
