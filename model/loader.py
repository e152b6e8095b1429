"""WeightLoader: takes a model's weights from its file to a device, one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.form import Form
from llama_herd.model.linear import Linear
from llama_herd.model.segment import Segment, dense
from llama_herd.model.weight import Weight


@dataclass(eq=False)
class WeightLoader:
    """Lays weights out for a device, and tells how many bytes of the file are done, and are in all."""

    file: ModelFile
    device: torch.device
    dtype: torch.dtype
    row_tile: int = 0
    form: Form = Form.DENSE
    on_progress: Callable[[int, int], None] | None = None
    num_bytes_done: int = 0

    def vector(self, name: str) -> Tensor:
        """A vector (C,), float32 whatever the compute dtype."""
        weight = self.file.weight(name)
        vector = dense([weight], self.device, torch.float32)[0]
        self._note(weight)
        return vector

    def segment(self, name: str) -> Segment:
        """One weight whose rows are looked up, such as an embedding."""
        (segment,) = self.linear(name).segments
        return segment

    def linear(self, *names: str, biases: Sequence[str] = ()) -> Linear:
        """One Linear of several weights that multiply the same input, with the biases of all or of none."""
        weights = [self.file.weight(name) for name in names]
        linear = Linear.load(weights, self.device, self.dtype, self.row_tile, self.form)
        self._note(*weights)
        if biases:
            bias = torch.cat([self.vector(name) for name in biases])
            linear = replace(linear, bias=bias.to(self.dtype))
        return linear

    def _note(self, *weights: Weight) -> None:
        self.num_bytes_done += sum(weight.num_bytes for weight in weights)
        if self.on_progress is not None:
            self.on_progress(self.num_bytes_done, self.file.num_bytes)
