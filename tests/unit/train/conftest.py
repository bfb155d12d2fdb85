import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import two_ranks
from helpers import save_tiny

from engine.config import FsdpConfig
from engine.train.layout import Layout


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def layout():
    """That of one rank over gloo, in this process."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Layout.of("cpu", FsdpConfig())


@dataclass
class TwoRanks:
    """Two processes that train what two_ranks.py, model_ranks.py and split_ranks.py describe, started once for all tests."""

    folder: Path
    paths: tuple[str, str, str]  # policy, reference, dense
    processes: multiprocessing.ProcessContext

    def results(self, name: str) -> list[dict]:
        """What each rank saved as `name`; waits for its end."""
        while not self.processes.join():
            pass
        return [torch.load(self.folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="session")
def two_rank_run(tmp_path_factory) -> TwoRanks:
    folder = tmp_path_factory.mktemp("ranks")
    paths = (
        save_tiny(folder / "policy", tie=True),
        save_tiny(folder / "reference", seed=1),
        save_tiny(folder / "dense", moe=False),
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return TwoRanks(folder, paths, multiprocessing.spawn(two_ranks.main, args=(paths, str(folder), port), nprocs=2, join=False))
