"""Tensors as good as equal. torch.testing's own check first loads torch.distributed: half a second."""

import torch
from torch import Tensor

#: Relative and absolute, by the type of the numbers: those of torch.testing.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}


def assert_close(
    found: Tensor, expected: Tensor, *, atol: float | None = None, rtol: float | None = None
) -> None:
    """Each number within atol + rtol * |expected|. NaN is close to nothing, and infinity to itself alone."""
    assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
    assert (atol is None) == (rtol is None), "give both tolerances or none"
    if atol is None or rtol is None:
        rtol, atol = TOLERANCES[expected.dtype]
    close = torch.isclose(found, expected, atol=atol, rtol=rtol)
    assert close.all(), _told(found, expected, close)


def _told(found: Tensor, expected: Tensor, close: Tensor) -> str:
    """The worst of the numbers that are not close, which is NaN where there is one."""
    away = (found.double() - expected.double()).abs().masked_fill(close, -1)
    worst = tuple(int(index) for index in torch.unravel_index(away.argmax(), away.shape))
    return (
        f"{int((~close).sum())} of {close.numel()} numbers are not close, the worst at {worst}: "
        f"{float(found[worst])} and not {float(expected[worst])}, {float(away[worst]):.3g} away"
    )
