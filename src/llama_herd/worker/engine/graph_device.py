"""GraphDevice: what a runner asks of a device that works on its own time, in the order of what it is told.

CudaDevice is the one place that names CUDA's streams, events and graphs.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

#: Does again what was captured. It returns at once.
Replay = Callable[[], None]


class Event(Protocol):
    """A point in the order of the device's work, as torch has it; it may be used again and again."""

    def record(self) -> None:
        """The point is now."""

    def synchronize(self) -> None:
        """Return when all that was told before the point is done."""


class GraphDevice(Protocol):
    """Work is captured and replayed on it. All but `Event.synchronize` and `capture` return at once."""

    def host_memory(self, num_bytes: int) -> Tensor:
        """Memory of the host that the device reads and writes by itself: uint8 (num_bytes,)."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy between such memory and the device, in the order of all its work."""

    def event(self) -> Event:
        """A new one, not recorded yet."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Run work once to get ready for it, then note what it asks of the device.

        Work may only touch tensors that stay where they are, and no number of it may reach the host.
        """


class CaptureError(RuntimeError):
    """Something cannot be captured. The device is as well as before."""


class CudaDevice:
    """The GPU that is torch's current one, all work in its current stream.

    All graphs share one pool of memory: none leaves anything there that another one might overwrite, since
    what they tell each other lies in tensors that were made before.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # No graph can be captured in the stream that torch starts with.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        # A thread that waits for it sleeps: the next step is on its way, so waking up late costs nothing.
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def capture(self, work: Callable[[], None]) -> Replay:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()  # kernels are compiled, libraries make their handles and workspaces
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads touch no device, but what they do must not break a capture either.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
        except torch.AcceleratorError as error:
            if "captur" not in str(error):
                raise
            self._forget_capture()
            raise CaptureError(str(error)) from error
        finally:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own one behind
        return graph.replay

    def _forget_capture(self) -> None:
        """End for torch what CUDA has ended with an error: torch itself does not.

        Else its allocator gives no memory back that it keeps, and so lacks some for what is larger.
        """
        card = torch.cuda.current_device()
        with suppress(RuntimeError):  # it has noticed the end
            torch._C._cuda_endAllocateToPool(card, self._pool)
            torch._C._cuda_releasePool(card, self._pool)


class UncapturedDevice(CudaDevice):
    """The same GPU, without graphs: all work is launched again kernel by kernel."""

    def capture(self, work: Callable[[], None]) -> Replay:
        return work
