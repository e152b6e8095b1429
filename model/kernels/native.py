"""Which types native kernels multiply as they are stored, by the kind of device."""

from gguf import GGMLQuantizationType as GGMLType

#: None yet: blocks are multiplied by way of `dequantize`, which takes 10 to 30 times as long as numbers.
MULTIPLIED_TYPES: dict[str, frozenset[GGMLType]] = {"cpu": frozenset(), "cuda": frozenset()}
