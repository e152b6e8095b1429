"""Launch: one run of a Triton kernel, as a value that can be run, or only compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with all that it is called with."""

    kernel: Any  # what triton.jit makes
    grid: tuple[int, ...]
    arguments: Mapping[str, Tensor | int | float]
    constants: Mapping[str, Any]  # what it is compiled for
    num_warps: int
    num_stages: int  # tiles that are on their way while one is at work

    def __call__(self) -> None:
        self.kernel[self.grid](
            **self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
        )
