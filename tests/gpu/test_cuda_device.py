"""What CudaDevice asks of torch when a capture fails, with a torch.cuda that only notes it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from llama_herd.worker.engine.graph_device import CaptureError, CudaDevice

POOL = (0, 7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What torch.cuda was asked for. A capture ends as CUDA ends one in which something was not allowed."""
    asked: list[tuple[str, Any]] = []

    @contextmanager
    def capturing(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        finally:
            raise torch.AcceleratorError(
                "CUDA error: operation failed due to a previous error during capture"
            )

    def noting(name: str) -> Any:
        return lambda *given: asked.append((name, given))

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: MagicMock(name="current"))
    monkeypatch.setattr(torch.cuda, "Stream", MagicMock)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "set_stream", noting("stream"))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", noting("end"), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", noting("release"), raising=False)
    return asked


def test_after_a_capture_that_failed_torch_knows_that_none_is_underway(asked: list[tuple[str, Any]]) -> None:
    """While its allocator thinks that one is, it frees nothing that it keeps, and memory seems to lack."""
    with pytest.raises(CaptureError, match="previous error during capture"):
        CudaDevice().capture(lambda: None)
    assert asked[:2] == [("end", (0, POOL)), ("release", (0, POOL))]
    assert [name for name, _ in asked[2:]] == ["stream"]


def test_a_capture_that_torch_has_ended_itself_is_not_ended_twice(
    asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def complain(*_: Any) -> None:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", complain)
    with pytest.raises(CaptureError):
        CudaDevice().capture(lambda: None)
    assert [name for name, _ in asked] == ["stream"]
