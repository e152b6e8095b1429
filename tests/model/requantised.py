"""A model file whose matrices are given in another type."""

from itertools import cycle
from typing import Any

import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.weights.weight import Weight


class Requantised:
    """Gives the matrices of `file` in these types, one after the other; each the same at every call."""

    def __init__(self, file: ModelFile, types: str) -> None:
        self._file = file
        self._types = cycle(GGMLType[name] for name in types.split())
        self._given: dict[str, Weight] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __contains__(self, name: str) -> bool:
        return name in self._file

    def weight(self, name: str) -> Weight:
        if name not in self._given:
            self._given[name] = self._requantised(name)
        return self._given[name]

    def _requantised(self, name: str) -> Weight:
        stored = self._file.weight(name)
        if len(stored.shape) == 1:
            return stored
        values, type = dequantize(stored.blocks, stored.type), next(self._types)
        return Weight(type, stored.shape, torch.from_numpy(stored_blocks(values.numpy(), type)))
