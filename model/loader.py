"""WeightLoader: takes a model's weights from its file to a device, one by one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.form import Form
from llama_herd.model.linear import Linear
from llama_herd.model.segment import Segment, dense


@dataclass(frozen=True, eq=False)
class WeightLoader:
    """Lays weights out for a device."""

    file: ModelFile
    device: torch.device
    dtype: torch.dtype
    row_tile: int = 0
    form: Form = Form.DENSE

    def vector(self, name: str) -> Tensor:
        """A vector (C,), float32 whatever the compute dtype."""
        return dense([self.file.weight(name)], self.device, torch.float32)[0]

    def segment(self, name: str) -> Segment:
        """One weight whose rows are looked up, such as an embedding."""
        (segment,) = self.linear(name).segments
        return segment

    def linear(self, *names: str) -> Linear:
        """One Linear of several weights that multiply the same input."""
        weights = [self.file.weight(name) for name in names]
        return Linear.load(weights, self.device, self.dtype, self.row_tile, self.form)
