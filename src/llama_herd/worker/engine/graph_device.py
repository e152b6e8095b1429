"""GraphDevice: what a runner asks of a device that works on its own time, in the order of what it is told."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

#: Does again what was captured. It returns at once.
Replay = Callable[[], None]


class Event(Protocol):
    """A point in the order of the device's work; it may be used again and again."""

    def record(self) -> None:
        """The point is now."""

    def wait(self) -> None:
        """Return when all that was told before the point is done."""


class GraphDevice(Protocol):
    """A device whose work is captured and replayed. All but `Event.wait` and `capture` return at once."""

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
