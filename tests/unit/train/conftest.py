import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mesh():
    """A one-rank gloo mesh in this process."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))
