"""upload: numbers of the host to a device."""

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

#: Whole numbers of the host as a tensor (N,) on some device, in order with all else that the device does.
Send: TypeAlias = Callable[[Sequence[int]], Tensor]

#: What Python's arrays call our types. To fill one takes an eighth of the time of `torch.tensor`.
_TYPECODES = {torch.int64: "q", torch.float32: "f"}


def upload(
    numbers: Sequence[int] | Sequence[float], device: torch.device | str, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Numbers as a tensor (N,). To a GPU they go from pinned memory, so that nothing waits for the copy."""
    values: array[Any] = array(_TYPECODES[dtype], numbers)
    tensor = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def send_rows(rows: Sequence[Sequence[int]], send: Send) -> Tensor:
    """Rows of equal length as a tensor (R, N)."""
    return send(list(chain.from_iterable(rows))).view(len(rows), len(rows[0]))
