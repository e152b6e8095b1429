"""The sampler's noise: a pure function of seed, choice, position and token.

It is MurmurHash3_x86_32 (Appleby's reference, seed 0) over five little-endian 32-bit words:
seed (low word), seed (high word), choice, position, token id. Whoever knows these five numbers can draw a
job's tokens again, in any batch, after any crash, in any language.

On the device the 32 bits are an int32, whose products and sums wrap as the hash needs.
"""

import torch
from torch import Tensor

_C1 = 0xCC9E2D51
_C2 = 0x1B873593
_MASK = 0xFFFFFFFF
_NUM_BYTES = 20
#: The largest float32 below 2^32. The 128 largest hashes round to 2^32 itself, which has no noise.
_MOST = 2.0**32 - 2.0**8


def hash_prefix(seed: int, choice: int, *position: int) -> int:
    """The hash's state after the four words that all tokens of a row share, as an int32.

    Without a position after the three that all tokens of a sequence share: `mixed` takes it in.
    """
    state = 0
    for word in (seed & _MASK, seed >> 32 & _MASK, choice, *position):
        word = word * _C1 & _MASK
        word = (word << 15 | word >> 17) * _C2 & _MASK
        state ^= word
        state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    return _int32(state)


def mixed(states: Tensor, words: Tensor) -> Tensor:
    """The states after one more word each. words: int32 (B, N), states: the same, or (B, 1)."""
    word = words * _int32(_C1)
    word = (word << 15).bitwise_or_(_shifted(word, 17)).mul_(_int32(_C2))
    state = word.bitwise_xor_(states)
    return (state << 13).bitwise_or_(_shifted(state, 19)).mul_(5).add_(_int32(0xE6546B64))


def hash_tokens(prefixes: Tensor, token_ids: Tensor) -> Tensor:
    """Finish the hash. prefixes: (B, 1) int32, token_ids: (B, N) int32. Returns (B, N) int32."""
    state = mixed(prefixes, token_ids).bitwise_xor_(_NUM_BYTES)
    state.bitwise_xor_(_shifted(state, 16)).mul_(_int32(0x85EBCA6B))
    state.bitwise_xor_(_shifted(state, 13)).mul_(_int32(0xC2B2AE35))
    return state.bitwise_xor_(_shifted(state, 16))


def gumbel(prefixes: Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel noise, float32: the largest of logits + noise is a draw from their softmax (Gumbel-max).

    It is -log of an exponential, whose small values decide the draw. log1p keeps them exact. The plain
    -log(u) of a float32 u close to 1 would be 0 once in 2^25 tokens, and such a token would always win.
    """
    bits = hash_tokens(prefixes, token_ids)
    unsigned = bits.to(torch.float32).add_((bits < 0).to(torch.float32), alpha=2.0**32)
    exponential = unsigned.clamp_(max=_MOST).add_(0.5).mul_(-(2.0**-32)).log1p_().neg_()
    return exponential.log_().neg_()


def _shifted(bits: Tensor, places: int) -> Tensor:
    """A logical shift to the right; torch's shift of an int32 copies the sign."""
    return (bits >> places).bitwise_and_((1 << 32 - places) - 1)


def _int32(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits
