"""upload: numbers of the host to a device."""

from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = Sequence[int] | Sequence[float] | Sequence[Sequence[int]]


def upload(numbers: Numbers, device: torch.device | str, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers as a tensor. To a GPU they go from pinned memory, so that nothing waits for the copy."""
    is_gpu = torch.device(device).type == "cuda"
    return torch.tensor(numbers, dtype=dtype, pin_memory=is_gpu).to(device, non_blocking=True)
