"""Native attention says what the formula says in float64, each row alone, and reads nothing else."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen
from llama_herd.model.kernels.attention import Attention
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.pages import PAGE_TOKENS
from tests.closeness import assert_close
from tests.model.kernels.nan_cache import NanCache

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def attention(set_kernels: Kernels) -> Attention:
    assert set_kernels.attention is not None
    return set_kernels.attention


@dataclass
class Case:
    """Rows that end sequences of some lengths."""

    q: Tensor  # (R, H, D)
    cache: NanCache
    seen: Seen

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        scattered: bool = True,
    ) -> "Case":
        cache = NanCache.of(lengths, dtype, kv_heads=kv_heads, head_dim=head_dim, scattered=scattered)
        seen = Seen(torch.arange(len(lengths)), torch.tensor(lengths), cache.tables, cache.pages)
        return cls(torch.randn(len(lengths), heads, head_dim).to(dtype), cache, seen)

    def only(self, row: int) -> Seen:
        seen = self.seen
        at = slice(row, row + 1)
        return Seen(seen.rows[at], seen.num_keys[at], seen.tables[at], seen.pages)

    def attend(self, attention: Attention, seen: Seen | None = None, **scoring: Any) -> Tensor:
        out = torch.full_like(self.q, torch.nan)
        attention(self.q, self.cache.storage, seen or self.seen, out, Scoring(**scoring))
        return out

    def expected(self, row: int, *, scale: float = 0.0, window: int = 0, cap: float = 0.0) -> Tensor:
        """By the formula: float64 (H, D)."""
        length = int(self.seen.num_keys[row])
        first = max(0, length - window) if window else 0
        q = self.q[row].double()
        keys, values = self.cache.exact(self.seen.tables[row], range(first, length))  # (K, keys, D) each
        groups = q.view(len(keys), -1, q.shape[1])  # those of as many heads as look at the same keys
        scores = groups @ keys.transpose(1, 2) * (scale or q.shape[1] ** -0.5)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        out: Tensor = scores.softmax(dim=2) @ values
        return out.view_as(q)

    def check(self, y: Tensor, **scoring: Any) -> None:
        tolerance = 1e-5 if y.dtype is torch.float32 else 2**-8
        for row in range(len(y)):
            assert_close(
                y[row].double(),
                self.expected(row, **scoring),
                atol=tolerance,
                rtol=tolerance,
            )


LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 1000)


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [2, 16, 64, 80, 96, 128, 250, 256])
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (3, 3), (4, 2), (6, 2), (8, 2), (5, 1), (6, 1), (7, 1), (32, 4), (19, 1)]
)
def test_every_set_attends_as_float64(
    attention: Attention, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    case = Case.of(LENGTHS, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    case.check(case.attend(attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 100, 120])
@pytest.mark.parametrize("scattered", [True, False])
def test_long_rows_in_parts_attend_as_float64(
    attention: Attention, scattered: bool, head_dim: int, dtype: torch.dtype
) -> None:
    lengths = [5000, 4096, 4097, 7]  # more blocks than a row may have parts: a part has several
    case = Case.of(lengths, head_dim=head_dim, dtype=dtype, scattered=scattered)
    case.check(case.attend(attention))
    case.check(case.attend(attention, scale=0.7), scale=0.7)  # a few keys weigh all, wherever they are


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "scoring",
    [
        {"scale": 0.7},
        {"window": 1},
        {"window": 64},
        {"window": 100},
        {"window": 700},
        {"cap": 2.0},
        {"cap": 5.0, "window": 33, "scale": 0.2},
    ],
    ids=str,
)
def test_scales_windows_and_caps_are_kept(
    attention: Attention, scoring: dict[str, Any], dtype: torch.dtype
) -> None:
    case = Case.of(LENGTHS, dtype=dtype)
    case.check(case.attend(attention, **scoring), **scoring)


def test_scores_of_any_size_give_what_float64_gives(attention: Attention) -> None:
    case = Case.of([1000, 300, 3])
    case.check(case.attend(attention, scale=30.0), scale=30.0)
    case.q.fill_(1e4)
    case.cache.storage[0].abs_()
    assert case.attend(attention).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_alone_and_among_others(attention: Attention, dtype: torch.dtype) -> None:
    case = Case.of([*LENGTHS, 5000, *range(40, 90)], heads=12, kv_heads=3, dtype=dtype)
    together = case.attend(attention)
    for row in range(len(case.q)):
        assert case.attend(attention, case.only(row))[row].equal(together[row]), row


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_threads_change_no_bit(attention: Attention, num_threads: int) -> None:
    case = Case.of([3000, 700, 64, 2000], dtype=torch.bfloat16)
    torch.set_num_threads(1)
    alone = case.attend(attention)
    torch.set_num_threads(num_threads)
    for _ in range(20):
        assert case.attend(attention).equal(alone)


def test_rows_of_one_sequence_see_their_own_past(attention: Attention) -> None:
    """Some tokens at once: what comes after a row is there, is NaN, and is not read."""
    case = Case.of([300])
    cells = case.cache.index(case.seen.tables[0], range(297, 300))
    after = case.cache.storage[cells].clone()
    case.q = torch.randn(4, *case.q.shape[1:])
    case.seen = Seen(torch.tensor([2]), torch.tensor([297]), torch.tensor([0]), case.seen.pages)
    case.cache.storage[cells] = torch.nan
    early = case.attend(attention)
    assert early[[0, 1, 3]].isnan().all()  # rows that are not asked for stay
    case.cache.storage[cells] = after
    lengths = torch.tensor([300, 298, 297, 299])
    case.seen = Seen(torch.arange(4), lengths, torch.zeros(4, dtype=torch.int64), case.seen.pages)
    found = case.attend(attention)
    case.check(found)
    assert found[2].equal(early[2])


def test_what_is_not_finite_stays_in_its_row(attention: Attention) -> None:
    case = Case.of([5, 300, 70])
    good = case.attend(attention)
    case.q[1, 2, 3] = torch.nan
    y = case.attend(attention)
    assert y[1, 2].isnan().all()
    y[1, 2] = good[1, 2]
    assert y.equal(good)


def test_queries_may_stand_between_others(attention: Attention) -> None:
    case = Case.of([70, 3], dtype=torch.bfloat16)
    wide = torch.randn(2, 9, 64).bfloat16()
    wide[:, :4] = case.q
    expected, case.q = case.attend(attention), wide[:, :4]
    assert case.attend(attention).equal(expected)


def test_what_it_is_not_made_for_is_not_taken(attention: Attention) -> None:
    q, cached = torch.empty(1, 4, 64), torch.empty(2, 2, 1, PAGE_TOKENS, 64)
    assert attention.takes(q, cached)
    for dtype in (torch.float16, torch.float64):
        assert not attention.takes(q.to(dtype), cached.to(dtype))
    assert not attention.takes(q.bfloat16(), cached)
    assert not attention.takes(q[..., :33], cached[..., :33])
    assert not attention.takes(torch.empty(1, 4, 258), torch.empty(2, 2, 1, PAGE_TOKENS, 258))
    assert not attention.takes(q, cached[:, :, :, :32])


@pytest.mark.usefixtures("threads")
def test_a_forked_child_attends_too(attention: Attention) -> None:
    torch.set_num_threads(2)
    case = Case.of([3000, 64])
    expected = bytes(case.attend(attention).numpy())
    child = os.fork()
    if not child:
        os._exit(0 if bytes(case.attend(attention).numpy()) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
