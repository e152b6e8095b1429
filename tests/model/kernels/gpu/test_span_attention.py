"""Prompts in Triton attend as in float64, whatever the heads, the type, the window and what is cached."""

import pytest
import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.exact import attends_right, tokens_of
from tests.model.kernels.gpu.test_attention import DTYPES, HEADS, Case, case

#: Of each sequence so many tokens, and the last ones of them attend.
SPANS = ((1, 1), (70, 70), (64, 64), (150, 20), (200, 65), (9, 5))


def spans_of(made: Case, lengths: tuple[tuple[int, int], ...]) -> SeenSpans:
    """The spans, one behind the other, with a row between two that does not attend."""
    counts = torch.tensor([count for _, count in lengths])
    first_rows = 1 + torch.arange(len(lengths)) + counts.cumsum(0) - counts
    num_keys = torch.tensor([length - count + 1 for length, count in lengths])
    device = made.q.device
    first = Seen(first_rows.to(device), num_keys.to(device), made.seen.tables, made.seen.pages)
    return SeenSpans(first, counts.to(device), int(counts.max()))


def attended(
    device: torch.device,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    scoring: Scoring,
    lengths: tuple[tuple[int, int], ...] = SPANS,
) -> tuple[Tensor, Tensor, Case, Seen]:
    """What all tokens of the spans attend to (T, H, D), the queries, and who sees what."""
    from llama_herd.model.kernels.gpu.span_attention import attending

    made = case(heads, dtype, device, tuple(length for length, _ in lengths))
    spans = spans_of(made, lengths)
    seen = tokens_of(spans)
    num_rows = 1 + len(lengths) + int(spans.num_tokens.sum())
    q = torch.randn(num_rows, heads[0] + heads[1], heads[2]).to(device, dtype)[:, : heads[0]]
    y = torch.full(q.shape, 7.0, dtype=dtype, device=device)
    attending(q, made.cached, spans, y, scoring)()
    is_other = torch.ones(num_rows, dtype=torch.bool, device=device)
    is_other[seen.rows] = False
    assert (y[is_other] == 7).all()
    return y[seen.rows], q, made, seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_each_token_attends_to_all_before_it(
    device: torch.device, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    y, q, made, seen = attended(device, heads, dtype, Scoring())
    assert attends_right(y, q, made.cached, seen, Scoring())


@pytest.mark.parametrize(("window", "cap"), [(1, 0), (40, 0), (64, 0), (90, 4), (1000, 0), (0, 3)])
def test_windows_and_caps_are_obeyed(device: torch.device, window: int, cap: float) -> None:
    scoring = Scoring(0.3, window, cap)
    y, q, made, seen = attended(device, (4, 2, 32), torch.float32, scoring)
    assert attends_right(y, q, made.cached, seen, scoring)


@pytest.mark.parametrize("window", [0, 100])
def test_a_span_may_be_longer_than_a_tile_and_stand_far_behind(device: torch.device, window: int) -> None:
    scoring = Scoring(0.25, window)
    y, q, made, seen = attended(device, (2, 1, 16), torch.float32, scoring, ((700, 300), (512, 512), (3, 3)))
    assert attends_right(y, q, made.cached, seen, scoring)


def test_a_span_without_tokens_attends_to_nothing(device: torch.device) -> None:
    y, q, made, seen = attended(device, (2, 2, 16), torch.float32, Scoring(), ((5, 0), (70, 66), (1, 0)))
    assert len(y) == 66
    assert attends_right(y, q, made.cached, seen, Scoring())


def test_large_scores_overflow_nothing(device: torch.device) -> None:
    for cap in (0.0, 30.0):
        y, *_ = attended(device, (2, 2, 64), torch.float16, Scoring(1e4, cap=cap))
        assert y.isfinite().all()
