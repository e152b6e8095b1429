"""A type of numbers, by its name in plans and settings, as torch has it."""

import torch

from llama_herd.worker.loading.memory_plan import Dtype

_TYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_dtype(name: Dtype) -> torch.dtype:
    return _TYPES[name]
