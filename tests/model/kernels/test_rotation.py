"""A native kernel turns queries and keys as torch does, and puts keys and values where the cache has them."""

import pytest
import torch

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.rotation import Rotation
from llama_herd.model.llama2 import rotate
from tests.closeness import assert_close
from tests.tiny import tiny_config

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def rotation(set_kernels: Kernels) -> Rotation:
    assert set_kernels.rotation is not None
    return set_kernels.rotation


CHUNKS = (Chunk((4, 5), 0, [0] * 70, 0), Chunk((1, 2, 3), 130, [0], 1), Chunk((8,), 9, [0] * 3, 1))


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [2, 16, 44, 64, 80, 128, 256])
@pytest.mark.parametrize("chunks", [CHUNKS, CHUNKS[1:2]], ids=len)
def test_what_is_turned_and_kept_is_what_torch_turns_and_keeps(
    rotation: Rotation, chunks: tuple[Chunk, ...], head_dim: int, dtype: torch.dtype
) -> None:
    config = tiny_config(head_dim=head_dim)
    plain, native = (Cache(config, num_pages=9, dtype=dtype) for _ in range(2))
    plain.storage.zero_()
    native.storage.zero_()
    batch = Batch.from_chunks(chunks)
    H, K = config.num_heads, config.num_kv_heads
    qkv, rope = torch.randn(len(batch.ids), H + 2 * K, head_dim).to(dtype), plain.rope(batch.positions)
    turned = rotate(qkv[:, : H + K], rope)
    plain.write(1, turned[:, H:], qkv[:, H + K :], batch)
    layer = native.storage[:, 1]
    assert rotation.takes(qkv, layer)
    rotation(qkv, *rope, layer, batch.cells)
    rounding = 1e-6 if dtype is torch.float32 else 2**-7
    assert_close(qkv[:, :H], turned[:, :H], atol=rounding, rtol=rounding)
    assert_close(native.storage, plain.storage, atol=rounding, rtol=rounding)
    assert native.storage[1].equal(plain.storage[1])


def test_a_token_has_the_same_bits_alone_and_among_others(rotation: Rotation) -> None:
    config = tiny_config(head_dim=80)
    cache = Cache(config, num_pages=9, dtype=torch.bfloat16)
    batch = Batch.from_chunks(CHUNKS)
    rope, layer = cache.rope(batch.positions), cache.storage[:, 0]
    qkv = torch.randn(len(batch.ids), 8, 80).bfloat16()
    alone = [qkv[token : token + 1].clone() for token in range(len(qkv))]
    rotation(qkv, *rope, layer, batch.cells)
    for token, one in enumerate(alone):
        at = slice(token, token + 1)
        rotation(one, rope.cos[at], rope.sin[at], layer, batch.cells[at])
        assert one[0].equal(qkv[token])


def test_what_it_is_not_made_for_is_not_taken(rotation: Rotation) -> None:
    layer = Cache(tiny_config(), num_pages=2).storage[:, 0]
    qkv = torch.randn(3, 8, 16)
    assert rotation.takes(qkv, layer)
    assert not rotation.takes(qkv.bfloat16(), layer)
    assert not rotation.takes(qkv.half(), layer.half())
    assert not rotation.takes(qkv[:, :7], layer)
