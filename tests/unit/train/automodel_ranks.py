"""What one rank computes with AutoModel's classes on CPU: AutoModel asks for CUDA by name alone, and gets the CPU here.

Runs in processes of its own, because the stand-in replaces torch.device.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from two_ranks import CONFIG, train_all

from engine.config import KlConfig
from engine.train.plan import TrainerSpec


def pretend_cuda() -> None:
    """Answer AutoModel's calls for the current CUDA device with the CPU."""
    real = torch.device

    class Kind(type):
        def __instancecheck__(cls, value):
            return isinstance(value, real)

        def __call__(cls, *args, **kwargs):
            named_cuda = args and isinstance(args[0], str) and args[0].startswith("cuda")
            return real("cpu") if named_cuda else real(*args, **kwargs)

    class Device(metaclass=Kind):
        pass

    torch.device = Device
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None


def moe_layers_of(model_path: str) -> int | None:
    return None if model_path.endswith("dense") else 2


def trainer_spec(model_path: str, packed: bool = False, cp_size: int = 1, **options) -> TrainerSpec:
    """The training of `two_ranks`, with a KL to the model's own start, whose routers replay too."""
    replay = moe_layers_of(model_path) is not None
    changes = {
        "fsdp": CONFIG.fsdp.model_copy(update={"packing_samples": packed, "cp_size": cp_size}),
        "train": CONFIG.train.model_copy(update={"routing_replay": replay}),
        "algo": CONFIG.algo.model_copy(update={"kl": KlConfig(init_coef=0.1, use_loss=True)}),
    }
    return TrainerSpec(CONFIG.model_copy(update=changes), model_path, reference_path=model_path, **options)


def main(rank: int, world: int, ep_size: int, cp_size: int, packed: bool, model_path: str, folder: str, port: int) -> None:
    """Train like `two_ranks`, but on AutoModel's class; leaves the result and a checkpoint in `folder`."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # AutoModel compiles its activation: ten seconds on CPU
    pretend_cuda()
    torch.set_num_threads(1)
    from engine.train import actor

    of = actor.ModelOptions.of
    actor.ModelOptions.of = staticmethod(lambda config, device: replace(of(config, device), automodel=True, ep_size=ep_size))
    trainer = actor.Trainer(get=lambda references: references)
    facts = trainer.setup(trainer_spec(model_path, packed, cp_size, rank=rank, world=world, port=port))
    kinds = {type(m).__module__.split(".")[0] for m in trainer.policy.lm.modules()}
    result = train_all(trainer, ranks=world // cp_size, budget=30, layers=moe_layers_of(model_path))
    manifest = trainer.weight_manifest()
    trainer.save(f"{folder}/step-000003", b"controller", hf=True)
    trained = trainer.score([[1, 2, 3, 4], [5, 6]])
    trainer.load(f"{folder}/step-000003")
    reloaded = trainer.score([[1, 2, 3, 4], [5, 6]])
    result |= {"facts": facts, "kinds": kinds, "manifest": manifest, "trained": trained, "reloaded": reloaded}
    torch.save(result, Path(folder) / f"result-{rank}.pt")
    torch.distributed.destroy_process_group()
