"""WeightForm: how a model's matrices lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.block_types import NUMBERS_OF_BLOCK
from llama_herd.model.kernels.unloaded import NO_KERNELS, UnloadedKernels
from llama_herd.model.sizes import BFLOAT16_BYTES, FLOAT32_BYTES

if TYPE_CHECKING:
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels
    from llama_herd.model.kernels.native import Kernels

#: The kernels of a CPU, those of a GPU, where alone triton can be imported, or none.
AnyKernels: TypeAlias = "Kernels | TritonKernels | UnloadedKernels"


class KeptBlocks(Enum):
    """Choices of the matrices that stay in the blocks of their file; all others become plain numbers."""

    NOTHING = "nothing"
    MULTIPLIED = "multiplied"  # those that a kernel multiplies as they are
    SMALLER = "smaller"  # those that take fewer bytes so


@dataclass(frozen=True)
class WeightForm:
    """Which matrices stay in blocks, and the kernels that multiply some of these."""

    kept: KeptBlocks
    kernels: AnyKernels = NO_KERNELS

    DENSE: ClassVar[WeightForm]
    FASTEST: ClassVar[WeightForm]
    QUANTIZED: ClassVar[WeightForm]

    def with_kernels(self, kernels: AnyKernels) -> Self:
        return replace(self, kernels=kernels)

    def keeps_blocks(self, type: GGMLType, device_type: str, item_bytes: int) -> bool:
        """Whether a matrix of this type stays in blocks; a number of the compute dtype has `item_bytes`."""
        block_values, block_bytes = GGML_QUANT_SIZES[type]
        if self.kept is KeptBlocks.NOTHING or block_bytes >= block_values * item_bytes:
            return False
        return self.kept is KeptBlocks.SMALLER or self.is_native(type, device_type)

    def is_native(self, type: GGMLType, device_type: str) -> bool:
        """Whether blocks of this type are laid out for a kernel."""
        return device_type == self.kernels.device_type and type in self.kernels.types

    def tiles_numbers(self, columns: int, device_type: str, item_bytes: int) -> bool:
        """Whether a matrix of plain numbers is laid out for a kernel."""
        return (
            device_type == self.kernels.device_type
            and self.kernels.has_numbers
            and item_bytes == BFLOAT16_BYTES
            and columns % NUMBERS_OF_BLOCK == 0
        )

    def num_bytes(self, type: GGMLType, shape: tuple[int, ...], device_type: str, item_bytes: int) -> int:
        """Bytes of a weight in memory, at most; a vector is float32 whatever the compute dtype."""
        if len(shape) == 1:
            return shape[0] * FLOAT32_BYTES
        num_rows, columns = shape
        is_kept = self.keeps_blocks(type, device_type, item_bytes)
        is_tiled = (
            self.is_native(type, device_type)
            if is_kept
            else self.tiles_numbers(columns, device_type, item_bytes)
        )
        if is_tiled:
            num_rows = -(-num_rows // self.kernels.tile_rows) * self.kernels.tile_rows
        block_values, block_bytes = GGML_QUANT_SIZES[type] if is_kept else (1, item_bytes)
        return int(num_rows * columns // block_values * block_bytes)


WeightForm.DENSE = WeightForm(KeptBlocks.NOTHING)
WeightForm.FASTEST = WeightForm(KeptBlocks.MULTIPLIED)
WeightForm.QUANTIZED = WeightForm(KeptBlocks.SMALLER)
