"""StagingBuffer: the host's memory of one step in flight, for numbers to the device and results from it."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.worker.engine.graph_device import GraphDevice

#: What a step sends and gets at most without memory of its own: slots of some hundred sequences that begin,
#: a prompt of 65,536 tokens; the scores of 512 tokens and some thousand ids.
SENT_BYTES, LANDED_BYTES = 1 << 22, 1 << 19
#: Parts begin at multiples of this.
ALIGNMENT = 64


class StagingBuffer:
    """Memory that is allocated once. Nothing in it is written or read while the device may be at it."""

    def __init__(self, device: GraphDevice, place: torch.device) -> None:
        self._device = device
        self._place = place
        self._out = Arena(device.host_memory(SENT_BYTES))
        self._back = Arena(device.host_memory(LANDED_BYTES))
        self._event = device.event()
        self._is_closed = False

    def open(self) -> None:
        """Begin a step: wait for one that was never read, if need be."""
        if self._is_closed:
            self.wait()
        self._out.clear()
        self._back.clear()

    def send(self, numbers: Sequence[int]) -> Tensor:
        """Whole numbers as a new tensor of the device."""
        target = torch.empty(len(numbers), dtype=torch.int64, device=self._place)
        self.send_into(target, numbers)
        return target

    def send_into(self, target: Tensor, numbers: Sequence[int]) -> None:
        """Whole numbers into the first places of a tensor of the device."""
        if not numbers:
            return
        host = self._out.take(8 * len(numbers))
        if host is None:  # more than a step ever sends: from memory of its own, which torch keeps meanwhile
            target[: len(numbers)] = upload(numbers, self._place)
            return
        words = host.view(torch.int64)
        words.copy_(torch.frombuffer(array("q", numbers), dtype=torch.int64))
        self._device.copy(target[: len(numbers)], words)

    def land(self, tensor: Tensor) -> Tensor:
        """A tensor of the host for one of the device; it may be read after `wait`."""
        host = self._back.take(tensor.nbytes)
        if host is None:
            host = self._device.host_memory(tensor.nbytes)
        landed = host.view(tensor.dtype).view(tensor.shape)
        if tensor.numel():
            self._device.copy(landed, tensor)
        return landed

    def close(self) -> None:
        """End a step: all of it has been told to the device."""
        self._event.record()
        self._is_closed = True

    def wait(self) -> None:
        """Wait until the device has done all of the step."""
        self._event.synchronize()
        self._is_closed = False


class Arena:
    """Memory that is given out part by part, and taken back all at once."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._num_taken = 0

    def take(self, num_bytes: int) -> Tensor | None:
        """The next part, uint8 (num_bytes,); None if there is no more."""
        start = self._num_taken
        if start + num_bytes > len(self._memory):
            return None
        self._num_taken = start + -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return self._memory[start : start + num_bytes]

    def clear(self) -> None:
        self._num_taken = 0
