"""Native attention of prompts says what float64 says, however they are cut, and reads nothing else."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.attention import PrefillAttention
from llama_herd.model.kernels.instruction_set import AMX, AVX512_BF16, AVX512_VNNI
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.pages import PAGE_TOKENS
from tests.model.kernels.nan_cache import NanCache
from tests.model.native_library import kernels_of

pytestmark = pytest.mark.long

#: What sums in float32 may be away from sums in float64, in parts of the sum of their terms' sizes.
FLOAT32_ROUNDING = 3e-6
BFLOAT16_ROUNDING = 2**-8
#: What weights in bfloat16, of a rough exponential, may change in parts of the sum of weight x |value|.
WEIGHT_ROUNDING = 2**-8 + 2**-12


@pytest.fixture(scope="module", params=[AVX512_VNNI, AVX512_BF16, AMX], ids=lambda set: set.name)
def attention(request: pytest.FixtureRequest, kernels_folder: Path) -> PrefillAttention:
    attention = kernels_of(request.param, kernels_folder).prefill_attention
    assert attention is not None
    return attention


@dataclass
class Case:
    """Spans of sequences, (first position, tokens), each the end of its sequence."""

    q: Tensor  # (T, H, D)
    cache: NanCache
    spans: SeenSpans

    @classmethod
    def of(
        cls,
        spans: Sequence[tuple[int, int]],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 64,
        scattered: bool = True,
    ) -> "Case":
        starts, counts = (torch.tensor([span[i] for span in spans]) for i in range(2))
        lengths = (starts + counts).tolist()
        cache = NanCache.of(
            lengths, torch.bfloat16, kv_heads=kv_heads, head_dim=head_dim, scattered=scattered
        )
        seen = Seen(counts.cumsum(0) - counts, starts + 1, cache.tables, cache.pages)
        q = torch.randn(int(counts.sum()), heads, head_dim).bfloat16()
        return cls(q, cache, SeenSpans(seen, counts, int(counts.max())))

    def only(self, span: int, first: int = 0, count: int = 0) -> SeenSpans:
        """Some tokens of a span; all if no number is given."""
        seen = self.spans.first
        at = slice(span, span + 1)
        part = Seen(seen.rows[at] + first, seen.num_keys[at] + first, seen.tables[at], seen.pages)
        num_tokens = torch.tensor([count]) if count else self.spans.num_tokens[at]
        return SeenSpans(part, num_tokens, int(num_tokens))

    def attend(self, attention: PrefillAttention, spans: SeenSpans | None = None, **scoring: Any) -> Tensor:
        out = torch.full(self.q.shape, torch.nan).bfloat16()
        attention(self.q, self.cache.storage, spans or self.spans, out, Scoring(**scoring))
        return out

    def check(self, y: Tensor, *, scale: float = 0.0, window: int = 0, cap: float = 0.0) -> None:
        """By the formula, one head at a time."""
        H, D = y.shape[1:]
        scale = scale or D**-0.5
        seen = self.spans.first
        for span, count in enumerate(self.spans.num_tokens.tolist()):
            row, end = int(seen.rows[span]), int(seen.num_keys[span]) + count - 1
            found = self.cache.exact(seen.tables[span], range(end))
            after = torch.arange(end - count, end)[:, None] - torch.arange(end)  # (t, S)
            hidden = (after < 0) | (after >= window) if window else after < 0
            for head in range(H):
                keys, values = found[:, head // (H // found.shape[1])]
                q = self.q[row : row + count, head].double()
                scores, sizes = q @ keys.T * scale, 1 + q.abs() @ keys.abs().T * abs(scale)
                scores = cap * torch.tanh(scores / cap) if cap else scores
                weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
                exact = weights @ values
                rounding = FLOAT32_ROUNDING * sizes.amax(dim=-1, keepdim=True) + WEIGHT_ROUNDING
                allowed = rounding * (weights @ values.abs()) + BFLOAT16_ROUNDING * exact.abs()
                error = (y[row : row + count, head].double() - exact).abs()
                assert (error <= allowed).all(), (span, head, float((error / allowed).max()))


#: From the beginning, and in mid-sequence; some end with a page or a block, some between.
SPANS = (
    (0, 1),
    (0, 5),
    (0, 64),
    (3, 13),
    (60, 9),
    (250, 12),
    (255, 1),
    (256, 33),
    (511, 70),
    (0, 300),
    (900, 128),
)


MANY_HEADS = [pytest.param(*of, marks=pytest.mark.slow) for of in ((32, 4), (64, 1))]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("head_dim", [2, 16, 64, 80, 96, 128, 250, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (19, 1), *MANY_HEADS])
def test_it_attends_as_float64(attention: PrefillAttention, heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case.of(SPANS, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    case.check(case.attend(attention))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("scattered", [True, False])
def test_long_spans_attend_as_float64(attention: PrefillAttention, scattered: bool) -> None:
    case = Case.of([(0, 2100), (3000, 512), (1700, 900)], scattered=scattered)  # in several parts
    case.check(case.attend(attention))


@pytest.mark.parametrize(
    "scoring",
    [
        {"scale": 0.7},
        {"scale": 3.0},
        {"window": 1},
        {"window": 64},
        {"window": 100},
        {"window": 700},
        {"cap": 2.0},
        {"cap": 5.0, "window": 33, "scale": 0.2},
    ],
    ids=str,
)
def test_scales_windows_and_caps_are_kept(attention: PrefillAttention, scoring: dict[str, Any]) -> None:
    case = Case.of(SPANS, heads=6)
    case.check(case.attend(attention, **scoring), **scoring)


def test_scores_of_any_size_give_numbers(attention: PrefillAttention) -> None:
    case = Case.of([(0, 600)])
    case.q.fill_(1e4)
    case.cache.storage[0].abs_()
    assert case.attend(attention).isfinite().all()
    case.q.neg_()
    assert case.attend(attention).isfinite().all()


def test_equal_scores_weigh_the_same_wherever_they_stand(attention: PrefillAttention) -> None:
    num_keys = 50_000
    case = Case.of([(num_keys - 1, 1)], heads=1, kv_heads=1, head_dim=2)
    case.q.zero_()
    cells = case.cache.index(case.cache.tables[0], range(num_keys))
    found = case.cache.storage[cells]
    # Values are 1 in the first half, and 0 in the second.
    found[1] = (torch.arange(num_keys) < num_keys // 2)[:, None]
    case.cache.storage[cells] = found
    assert case.attend(attention).tolist() == [[[0.5, 0.5]]]


@pytest.mark.parametrize("scoring", [{}, {"window": 90}, {"cap": 3.0}], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 4), (6, 2), (3, 3)])
def test_a_token_has_the_same_bits_however_its_prompt_is_cut(
    attention: PrefillAttention, heads: int, kv_heads: int, scoring: dict[str, Any]
) -> None:
    case = Case.of([(0, 700), (7, 300), (130, 1)], heads=heads, kv_heads=kv_heads)
    together = case.attend(attention, **scoring)
    for cuts in ([0, 700], [0, 1, 2, 699, 700], [0, 33, 100, 256, 300, 513, 700]):
        for first, end in pairwise(cuts):
            alone = case.attend(attention, case.only(0, first, end - first), **scoring)
            assert alone[first:end].equal(together[first:end]), (first, end)
            assert alone[end:].isnan().all()
    for span in (1, 2):
        row, count = int(case.spans.first.rows[span]), int(case.spans.num_tokens[span])
        alone = case.attend(attention, case.only(span), **scoring)
        assert alone[row : row + count].equal(together[row : row + count])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_threads_change_no_bit(attention: PrefillAttention, num_threads: int) -> None:
    case = Case.of([(0, 300), (800, 200), (0, 40)])
    torch.set_num_threads(1)
    alone = case.attend(attention)
    torch.set_num_threads(num_threads)
    for _ in range(10):
        assert case.attend(attention).equal(alone)


def test_what_is_not_finite_stays_in_its_row(attention: PrefillAttention) -> None:
    case = Case.of([(0, 70), (300, 40)])
    good = case.attend(attention)
    case.q[80, 2, 3] = torch.nan
    y = case.attend(attention)
    assert y[80, 2].isnan().all()
    y[80, 2] = good[80, 2]
    assert y.equal(good)


def test_queries_may_stand_between_others(attention: PrefillAttention) -> None:
    case = Case.of([(0, 70), (9, 5)])
    wide = torch.randn(75, 9, 64).bfloat16()
    wide[:, :4] = case.q
    expected, case.q = case.attend(attention), wide[:, :4]
    assert case.attend(attention).equal(expected)


def test_sets_of_wide_vectors_have_it_and_others_have_not(set_kernels: Kernels) -> None:
    is_wide = set_kernels.note.startswith(("avx512", "amx"))
    assert (set_kernels.prefill_attention is not None) is is_wide
    assert ("attention of prompts" in set_kernels.note) is is_wide


def test_what_it_is_not_made_for_is_not_taken(attention: PrefillAttention) -> None:
    q, cached = torch.empty(1, 4, 64).bfloat16(), torch.empty(2, 2, 1, PAGE_TOKENS, 64).bfloat16()
    assert attention.takes(q, cached)
    for dtype in (torch.float16, torch.float32):
        assert not attention.takes(q.to(dtype), cached.to(dtype))
    assert not attention.takes(q, cached.float())
    assert not attention.takes(q[..., :33], cached[..., :33])
    assert not attention.takes(q, cached[:, :, :, :32])


def test_threads_of_its_own_may_be_set(attention: PrefillAttention) -> None:
    case = Case.of([(0, 300)])
    assert case.attend(replace(attention, num_threads=3)).equal(case.attend(attention))


@pytest.mark.usefixtures("threads")
def test_a_forked_child_attends_too(attention: PrefillAttention) -> None:
    torch.set_num_threads(2)
    case = Case.of([(0, 100), (64, 20)], heads=32, head_dim=8)  # torch's own threads are left out of it
    expected = bytes(case.attend(attention).view(torch.int16).numpy())
    child = os.fork()
    if not child:
        os._exit(0 if bytes(case.attend(attention).view(torch.int16).numpy()) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
