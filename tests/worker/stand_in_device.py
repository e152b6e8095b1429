"""A device on a CPU with the face of one that works on its own time, and none of its patience.

Work is done when it is told, which is the order in which a card does it. What the host may not know yet is
kept from it: memory on its way to the host holds rubbish until its event was waited for, and memory on its
way to the device must stay as it is until then.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_herd.worker.engine.graph_device import Replay

#: Fills what may not be read yet: no id, no number.
RUBBISH = 0x81
#: So much of a memory's front, which is used first: to touch megabytes for the first time takes milliseconds.
NUM_RUBBISH = 1 << 17


class TooEarlyError(AssertionError):
    """The host has touched memory that the device was still at."""


@dataclass(eq=False)
class Crossing:
    """A copy that the host does not know the end of."""

    host: Tensor
    was: Tensor  # what the host's side held when the copy was told, or is to hold after it
    is_landing: bool


class StandInEvent:
    def __init__(self, device: "StandInDevice") -> None:
        self._device = device
        self._num_told = 0

    def record(self) -> None:
        self._num_told = self._device.num_told

    def synchronize(self) -> None:
        self._device.num_waits += 1
        self._device.arrive(self._num_told)


class StandInDevice:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.num_told = 0
        self.num_captures = 0
        self.num_replays = 0
        self.num_waits = 0
        self.num_events = 0
        self.num_host_bytes = 0
        self.num_sent = 0
        self.num_landed = 0
        self.is_working = False  # on what a card would do by itself
        self.is_hiding = False  # on what a card need not do
        self._crossings: deque[tuple[int, Crossing]] = deque()
        self._memories: list[Tensor] = []

    def host_memory(self, num_bytes: int) -> Tensor:
        self.num_host_bytes += num_bytes
        memory = torch.zeros(num_bytes, dtype=torch.uint8)
        memory[:NUM_RUBBISH] = RUBBISH
        self._memories.append(memory)
        return memory

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.num_told += 1
        with self._hiding():
            self._copy(target, source)

    def _copy(self, target: Tensor, source: Tensor) -> None:
        if self._is_host(target):
            self.num_landed += 1
            self._crossings.append((self.num_told, Crossing(target, source.clone(), is_landing=True)))
            target.view(-1).view(torch.uint8).fill_(RUBBISH)
        else:
            assert self._is_host(source), "a copy from memory that the device cannot read by itself"
            self.num_sent += 1
            self._crossings.append((self.num_told, Crossing(source, source.clone(), is_landing=False)))
            target.copy_(source)

    def event(self) -> StandInEvent:
        self.num_events += 1
        return StandInEvent(self)

    def capture(self, work: Callable[[], None]) -> Replay:
        self.num_captures += 1
        self._work(work)

        def replay() -> None:
            self.num_told += 1
            self.num_replays += 1
            self._work(work)

        return replay

    @torch.inference_mode()
    def arrive(self, num_told: int) -> None:
        """All that was told up to there is done, and the host may know."""
        with self._hiding():
            self._arrive(num_told)

    def _arrive(self, num_told: int) -> None:
        while self._crossings and self._crossings[0][0] <= num_told:
            crossing = self._crossings.popleft()[1]
            if crossing.is_landing:
                crossing.host.copy_(crossing.was)
            elif not crossing.host.equal(crossing.was):
                raise TooEarlyError("written to while the device was reading it")

    @contextmanager
    def _hiding(self) -> Iterator[None]:
        self.is_hiding = True
        try:
            yield
        finally:
            self.is_hiding = False

    def _work(self, work: Callable[[], None]) -> None:
        self.is_working = True
        try:
            work()
        finally:
            self.is_working = False

    def _is_host(self, tensor: Tensor) -> bool:
        place = tensor.untyped_storage().data_ptr()
        return any(memory.untyped_storage().data_ptr() == place for memory in self._memories)
