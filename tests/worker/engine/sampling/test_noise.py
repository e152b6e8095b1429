"""The noise has test vectors, so that it can be drawn again elsewhere."""

import math
import struct

import pytest
import torch

from llama_herd.worker.engine.sampling import noise
from llama_herd.worker.engine.sampling.noise import gumbel, hash_prefix, hash_tokens

#: (seed, choice, position, token) and MurmurHash3_x86_32 of `<QIII` of them.
VECTORS = [
    ((0, 0, 0, 0), 4003277130),
    ((42, 0, 7, 31_999), 448321905),
    ((2**63 - 1, 1, 4095, 128_255), 1620727703),
]


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32, seed 0, of whole words; murmur3(b"test") is 0xba6bd213 in the published vectors."""
    mask, state = 0xFFFFFFFF, 0
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 & mask
        state ^= (word << 15 | word >> 17) * 0x1B873593 & mask
        state = ((state << 13 | state >> 19) & mask) * 5 + 0xE6546B64 & mask
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & mask
    return state ^ state >> 16


def test_the_reference_here_is_murmur3() -> None:
    assert murmur3(b"test") == 0xBA6BD213


@pytest.mark.parametrize(("words", "expected"), VECTORS)
def test_the_hash_equals_its_vectors(words: tuple[int, int, int, int], expected: int) -> None:
    *prefix, token_id = words
    state = torch.tensor([[hash_prefix(*prefix)]], dtype=torch.int32)
    drawn = hash_tokens(state, torch.tensor([[token_id]], dtype=torch.int32))
    assert int(drawn.item()) & 0xFFFFFFFF == murmur3(struct.pack("<QIII", *words)) == expected


def test_the_noise_is_finite_and_gumbel_distributed() -> None:
    prefixes = torch.tensor([[hash_prefix(1, 0, position)] for position in range(20)], dtype=torch.int32)
    drawn = gumbel(prefixes, torch.arange(10_000, dtype=torch.int32).expand(20, -1))
    assert torch.isfinite(drawn).all()
    assert drawn.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert drawn.std().item() == pytest.approx(1.2825, abs=0.01)


def drawn_of(monkeypatch: pytest.MonkeyPatch, hashes: range) -> torch.Tensor:
    """The noise of these hashes, given as unsigned numbers."""
    bits = torch.arange(hashes.start, hashes.stop, dtype=torch.int64).to(torch.int32)[None]
    monkeypatch.setattr(noise, "hash_tokens", lambda *_: bits)
    return gumbel(bits, bits)[0]


def test_the_largest_hashes_give_finite_noise_and_never_less_than_larger_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last 128 would round to 2^32, whose noise is minus infinity."""
    drawn = drawn_of(monkeypatch, range(2**32 - 4096, 2**32))
    assert torch.isfinite(drawn).all()
    assert (drawn.diff() <= 0).all()
    assert drawn[-1] == drawn[-200] == pytest.approx(-2.8115, abs=1e-3)


def test_the_bound_of_the_largest_hashes_changes_no_other_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbounded(bits: torch.Tensor) -> torch.Tensor:
        unsigned = bits.float() + (bits < 0).float() * 2.0**32
        return -(-((unsigned + 0.5) * -(2.0**-32)).log1p()).log()

    for start in (0, 2**31 - 2048, 2**32 - 2**16, 2**32 - 4096 - 128):
        hashes = range(start, start + 4096)
        bits = torch.arange(hashes.start, hashes.stop).to(torch.int32)
        assert torch.equal(drawn_of(monkeypatch, hashes), unbounded(bits))


def test_the_rarest_bits_give_finite_noise_that_does_not_always_win(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.tensor([[0, 1, 2**31 - 1, -(2**31), -2, -1]], dtype=torch.int32)
    monkeypatch.setattr(noise, "hash_tokens", lambda *_: bits)
    drawn = gumbel(bits, bits)[0].tolist()
    expected = [-math.log(-math.log1p(-((b % 2**32) + 0.5) / 2**32)) for b in bits[0].tolist()]
    assert drawn[:4] == pytest.approx(expected[:4], rel=1e-5)
    assert max(drawn) == drawn[0] < 23  # the largest there can be
    assert max(drawn[4:]) <= expected[4] + 1  # the smallest: such a token hardly ever wins
