"""WeightLoader: takes a model's weights from its file to a device, one by one."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock, Thread
from typing import TypeVar

import torch
from torch import Tensor

from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.huge_pages import move_into_huge_pages
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import DenseSegment, Linear, NativeSegment, Segment, dense_matrix
from llama_herd.model.weights.weight import Weight

T = TypeVar("T")
#: Most threads that load weights: more would only wait for the memory.
MAX_THREADS = 4


@dataclass(eq=False)
class WeightLoader:
    """Lays weights out for a device, and tells how many bytes of the file are done, and are in all."""

    file: ModelFile
    device: torch.device
    dtype: torch.dtype
    row_tile: int = 0
    form: WeightForm = WeightForm.DENSE
    on_progress: Callable[[int, int], None] | None = None
    num_bytes_done: int = 0
    _laid_out: list[Tensor] = field(init=False, default_factory=list)
    _lock: Lock = field(init=False, default_factory=Lock)

    def vector(self, name: str) -> Tensor:
        """A vector (C,), float32 whatever the compute dtype."""
        weight = self.file.weight(name)
        vector = dense_matrix([weight], self.device, torch.float32)[0]
        self._note(weight)
        return vector

    def segment(self, name: str, *, is_multiplied: bool) -> Segment:
        """One weight whose rows are looked up, such as an embedding."""
        (segment,) = self.linear(name, is_multiplied=is_multiplied).segments
        return segment

    def linear(self, *names: str, is_multiplied: bool = True) -> Linear:
        """One Linear of several weights that multiply the same input, with the biases that the file has."""
        weights = [self.file.weight(name) for name in names]
        linear = Linear.load(
            weights, self.device, self.dtype, self.row_tile, self.form, is_multiplied=is_multiplied
        )
        with self._lock:
            self._laid_out += _matrices(linear)
        self._note(*weights)
        biases = [name.removesuffix("weight") + "bias" for name in names]
        if any(name in self.file for name in biases):
            vectors = [
                self.vector(name) if name in self.file else torch.zeros(weight.shape[0], device=self.device)
                for name, weight in zip(biases, weights, strict=True)
            ]
            linear = replace(linear, bias=torch.cat(vectors).to(self.dtype))
        return linear

    def side_by_side(self, load: Callable[[int], T], num_parts: int) -> list[T]:
        """Load the parts of a model, on a CPU as many at a time as torch has threads.

        Each has one thread of torch meanwhile: what is laid out at once is too little for more.
        """
        num_threads = torch.get_num_threads()
        if self.device.type != "cpu" or num_threads == 1:
            return [load(part) for part in range(num_parts)]
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(min(num_threads, MAX_THREADS)) as threads:
                return list(threads.map(load, range(num_parts)))
        finally:
            torch.set_num_threads(num_threads)

    def finish(self) -> Thread | None:
        """Give back, once all is loaded, the memory that only loading took.

        Return the thread that then moves the weights, beside their first use, to where they are read fastest.
        """
        trim_heap()  # tens of MB, which several threads took to turn rows and lay them out
        if self._laid_out and self.device.type == "cpu":
            return move_into_huge_pages(self._laid_out)
        return None

    def _note(self, *weights: Weight) -> None:
        with self._lock:
            self.num_bytes_done += sum(weight.num_bytes for weight in weights)
            if self.on_progress is not None:
                self.on_progress(self.num_bytes_done, self.file.num_bytes)


def _matrices(linear: Linear) -> list[Tensor]:
    """The matrices that a Linear reads in every step."""
    tiles = [one.tiles for one in linear.segments if isinstance(one, NativeSegment)]
    return tiles + [one.matrix for one in linear.segments if isinstance(one, DenseSegment)]


def trim_heap() -> None:
    """Give memory that is free to the system, which the allocator would keep; where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))
