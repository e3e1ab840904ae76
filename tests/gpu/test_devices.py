"""What only a GPU can prove: ranks that share it compute on it and talk through the host; a rank with its own talks over NCCL."""

import pytest
import torch
import torch.distributed as dist

from course import Ranks
from course.ranks import device
from minipar import Mesh, comm
from minipar.trace import COMM, tracer

pytestmark = pytest.mark.gpu


def sum_on_the_device() -> tuple[str, str, float, list[str]]:
    """Device type and backend of this rank, a sum over all ranks on the device, and the calls that were traced."""
    tracer.drain()
    here = device()
    total = comm.all_reduce(torch.full((1000,), float(dist.get_rank() + 1), device=here), Mesh(dp=dist.get_world_size()).world)
    backend = dist.get_backend_config() if hasattr(dist, "get_backend_config") else dist.get_backend()
    return total.device.type, str(backend), float(total.mean()), [span.name for span in tracer.drain() if span.lane == COMM]


def test_ranks_that_share_gpus_compute_on_them_over_gloo() -> None:
    n = torch.cuda.device_count() + 1
    with Ranks(n) as ranks:
        assert "share a GPU" in ranks.describe()
        for kind, backend, mean, calls in ranks.run(sum_on_the_device, timeout=60):
            assert (kind, mean, calls) == ("cuda", n * (n + 1) / 2, ["all_reduce"])
            assert "nccl" not in backend


def test_a_rank_for_each_gpu_talks_over_nccl() -> None:
    n = torch.cuda.device_count()
    with Ranks(n) as ranks:
        assert ranks.describe() == "measured"
        for kind, backend, mean, _ in ranks.run(sum_on_the_device, timeout=60):
            assert (kind, mean) == ("cuda", n * (n + 1) / 2)
            assert "nccl" in backend


def test_nccl_itself_sums_on_the_device() -> None:
    def nccl_sum() -> float:
        ones = torch.ones(1000, device=device())
        dist.all_reduce(ones)
        torch.cuda.synchronize()
        return float(ones.mean())

    n = torch.cuda.device_count()
    with Ranks(n) as ranks:
        assert ranks.run(nccl_sum, timeout=60) == [float(n)] * n


def test_the_fork_server_holds_no_cuda_context() -> None:
    def touch_and_count() -> int:
        torch.zeros(1, device=device())
        return torch.cuda.device_count()

    for _ in range(3):  # a fork of a process that has touched CUDA could not use it
        with Ranks(2) as ranks:
            assert ranks.run(touch_and_count, timeout=60) == [torch.cuda.device_count()] * 2
