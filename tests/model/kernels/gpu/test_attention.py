"""Paged attention in Triton is attention in float64, whatever the heads, the type and the parts."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen
from llama_herd.model.kernels.exact import attends_right
from llama_herd.model.pages import PAGE_TOKENS, pages_for

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Heads, kv heads, numbers of a head: each with heads of its own, grouped, in one group, and of odd sizes.
HEADS = [(2, 2, 64), (8, 2, 32), (5, 1, 16), (34, 2, 16), (2, 1, 80), (2, 2, 96), (1, 1, 256)]
LENGTHS = (1, 32, 63, 64, 65, 150)


@dataclass(frozen=True)
class Case:
    """Queries, and a cache of NaN but for what they see."""

    q: Tensor
    cached: Tensor
    seen: Seen


def case(
    heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device, lengths: tuple[int, ...] = LENGTHS
) -> Case:
    """The token of each length stands in a row of its own, among rows that do not attend."""
    H, K, D = heads
    counts = [pages_for(length) for length in lengths]
    tables = torch.tensor([sum(counts[:i]) for i in range(len(counts))])
    pages = torch.randperm(sum(counts) + 3)[: sum(counts)]
    cached = torch.full((2, K, sum(counts) + 3, PAGE_TOKENS, D), torch.nan, dtype=dtype)
    for table, length in zip(tables.tolist(), lengths, strict=True):
        at = torch.arange(length)
        numbers = torch.randn(2, K, length, D).to(dtype)
        cached[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers
    rows = 2 * torch.arange(len(lengths)) + 1
    seen = Seen(*(part.to(device) for part in (rows, torch.tensor(lengths), tables, pages)))
    q = torch.randn(2 * len(lengths) + 1, H + K, D).to(device, dtype)[:, :H]  # beside keys
    return Case(q, cached.to(device), seen)


def attended(case: Case, num_splits: int, scoring: Scoring) -> Tensor:
    """(R, H, D), with the rows that do not attend left alone."""
    from llama_herd.model.kernels.gpu.attention import launches

    y = torch.full(case.q.shape, 7.0, dtype=case.q.dtype, device=case.q.device)
    for launch in launches(case.q, case.cached, case.seen, y, num_splits, scoring):
        launch()
    assert (y[::2] == 7).all()
    return y[case.seen.rows]


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_token_attends_to_all_before_it(
    device: torch.device, heads: tuple[int, int, int], dtype: torch.dtype, num_splits: int
) -> None:
    made = case(heads, dtype, device)
    y = attended(made, num_splits, Scoring())
    assert attends_right(y, made.q, made.cached, made.seen, Scoring())


@pytest.mark.parametrize("num_splits", [1, 2, 8])
@pytest.mark.parametrize(("window", "cap"), [(1, 0.0), (40, 0.0), (90, 4.0), (1000, 0.0), (0, 3.0)])
def test_windows_and_caps_are_obeyed(device: torch.device, window: int, cap: float, num_splits: int) -> None:
    made = case((4, 2, 32), torch.float32, device)
    scoring = Scoring(0.3, window, cap)
    y = attended(made, num_splits, scoring)
    assert attends_right(y, made.q, made.cached, made.seen, scoring)


@pytest.mark.parametrize("num_splits", [1, 2, 16, 32])
def test_a_long_sequence_may_be_in_many_parts(device: torch.device, num_splits: int) -> None:
    made = case((4, 1, 16), torch.float32, device, (1000, 3))
    y = attended(made, num_splits, Scoring(0.25))
    assert attends_right(y, made.q, made.cached, made.seen, Scoring(0.25))


def test_tokens_of_one_sequence_see_up_to_themselves(device: torch.device) -> None:
    made = case((2, 1, 16), torch.float32, device, (70, 70, 70))
    first = torch.zeros_like(made.seen.tables)
    seen = Seen(made.seen.rows, torch.tensor([68, 69, 70], device=device), first, made.seen.pages)
    same = Case(made.q, made.cached, seen)
    assert attends_right(attended(same, 2, Scoring(0.25)), same.q, same.cached, seen, Scoring(0.25))


def test_large_scores_overflow_nothing(device: torch.device) -> None:
    made = case((2, 2, 64), torch.float16, device)
    for cap in (0.0, 30.0):
        assert attended(made, 4, Scoring(1e4, cap=cap)).isfinite().all()


def test_parts_keep_a_card_at_work(device: torch.device) -> None:
    from llama_herd.model.kernels.gpu.attention import TritonAttention

    attention = TritonAttention(num_processors=132)
    found = [attention.num_splits(rows, 32, rows * 64) for rows in (1, 2, 4, 16, 64, 256)]
    assert found == [16, 8, 4, 1, 1, 1]
    assert attention.num_splits(1, 8, 64) == 32
    assert attention.num_splits(1, 8, 3) == 2
    assert attention.num_splits(1, 8, 1) == 1


def test_it_takes_the_layout_of_the_cache(device: torch.device) -> None:
    from llama_herd.model.kernels.gpu.attention import TritonAttention

    attention, made = TritonAttention(132), case((2, 2, 16), torch.float32, device)
    assert attention.takes(made.q, made.cached)
    assert not attention.takes(made.q.half(), made.cached)
    assert not attention.takes(made.q.double(), made.cached.double())
    assert not attention.takes(made.q, made.cached[..., ::2, :])
    assert not attention.takes(made.q.transpose(1, 2).contiguous().transpose(1, 2), made.cached)
