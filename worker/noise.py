"""The sampler's noise: a pure function of seed, choice, position and token.

It is MurmurHash3_x86_32 (Appleby's reference, seed 0) over five little-endian 32-bit words:
seed (low word), seed (high word), choice, position, token id. Whoever knows these five numbers can draw a
job's tokens again, in any batch, after any crash, in any language.
"""

import torch
from torch import Tensor

_C1 = 0xCC9E2D51
_C2 = 0x1B873593
_MASK = 0xFFFFFFFF
_NUM_BYTES = 20


def hash_prefix(seed: int, choice: int, position: int) -> int:
    """The hash's state after the four words that all tokens of a row share."""
    state = 0
    for word in (seed & _MASK, seed >> 32 & _MASK, choice, position):
        word = word * _C1 & _MASK
        word = (word << 15 | word >> 17) * _C2 & _MASK
        state ^= word
        state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    return state


def hash_tokens(prefixes: Tensor, token_ids: Tensor) -> Tensor:
    """Finish the hash. prefixes: (B, 1) int64, token_ids: (B, N) int64. Returns (B, N) int64 of 32 bits."""
    word = token_ids * _C1 & _MASK
    word = (word << 15 | word >> 17) * _C2 & _MASK
    state = prefixes ^ word
    state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    state = state ^ _NUM_BYTES
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def gumbel(prefixes: Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel noise, float64: the largest of logits + noise is a draw from their softmax (Gumbel-max)."""
    uniform = (hash_tokens(prefixes, token_ids).to(torch.float64) + 0.5) / 2**32
    return -torch.log(-torch.log(uniform))
