"""Which device and backend a rank gets."""

from __future__ import annotations

from typing import Any


def choose_device(wanted: str, rank: int, size: int) -> tuple[Any, str, int]:
    """``(device, backend, number of GPUs)``: NCCL with a GPU for each rank, else gloo through the host."""
    import torch

    gpus = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted.startswith("cuda") and not gpus:
        raise RuntimeError("device='cuda', but PyTorch sees no GPU here; use device='auto' or device='cpu'")
    if not gpus:
        return torch.device("cpu"), "gloo", 0
    return torch.device("cuda", rank % gpus), "cpu:gloo,cuda:nccl" if gpus >= size else "gloo", gpus
