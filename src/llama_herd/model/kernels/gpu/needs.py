"""Needs: what a model asks of kernels, so that what is compiled and checked at start is what it will run."""

from dataclasses import dataclass

import torch
from gguf import GGMLQuantizationType as GGMLType


@dataclass(frozen=True)
class Needs:
    """Matrices to multiply by, and the shape of attention."""

    dtype: torch.dtype
    widths: frozenset[tuple[GGMLType, int]]  # types of matrices, and their columns
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windows: frozenset[int]  # of the layers; 0: none
    cap: float
    hidden_size: int
    ffn_size: int
    activation: str
    qk_norm: bool
    post_norms: bool
