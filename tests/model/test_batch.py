"""A batch knows for every token where it stands and where its keys go."""

import pytest
import torch

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.tiling import GROUP_KEYS, GROUP_SCORES, SPAN_TOKENS


def test_chunks_lie_one_after_the_other() -> None:
    batch = Batch.from_chunks([Chunk((0, 1), 5, [10, 11, 12], False), Chunk((7,), 0, [20], True)])
    assert batch.ids.tolist() == [10, 11, 12, 20]
    assert batch.positions.tolist() == [5, 6, 7, 0]
    assert [list(span.rows) for span in batch.spans] == [[0, 1, 2], [3]]


def test_logits_are_of_the_last_token_of_the_chunks_that_want_them() -> None:
    chunks = [Chunk((0,), 0, [1, 2], True), Chunk((1,), 0, [3, 4], False), Chunk((2,), 9, [5], True)]
    assert Batch.from_chunks(chunks).logit_rows.tolist() == [1, 4]


def test_a_token_goes_into_the_page_of_its_position() -> None:
    batch = Batch.from_chunks([Chunk((9, 2), 62, [1, 1, 1, 1], False)])
    assert batch.cells.tolist() == [9 * 64 + 62, 9 * 64 + 63, 2 * 64, 2 * 64 + 1]


def test_a_long_chunk_attends_in_spans_that_cover_it() -> None:
    chunk = Chunk(tuple(range(40)), 100, [0] * (2 * SPAN_TOKENS + 1), True)
    spans = Batch.from_chunks([chunk]).spans
    assert [span.num_tokens for span in spans] == [SPAN_TOKENS, SPAN_TOKENS, 1]
    assert [span.start for span in spans] == [100, 100 + SPAN_TOKENS, 100 + 2 * SPAN_TOKENS]
    assert [row for span in spans for row in span.rows] == list(range(len(chunk.ids)))


def test_spans_of_one_length_are_stacked_with_filled_up_page_tables() -> None:
    chunks = [
        Chunk((3, 5), 70, [1], True),
        Chunk((8, 9), 0, [2, 3], True),
        Chunk((4, 6, 7), 0, [4], True),  # one page in use of three
    ]
    decode, prefill = Batch.from_chunks(chunks).groups
    assert decode.rows.tolist() == [[3], [0]]
    assert decode.positions.tolist() == [[0], [70]]
    assert decode.page_table.tolist() == [[4, 6], [3, 5]]
    assert prefill.rows.tolist() == [[1, 2]]
    assert prefill.page_table.tolist() == [[8]]


def test_a_page_table_shorter_than_the_longest_is_filled_with_page_0() -> None:
    chunks = [Chunk((3,), 0, [1], True), Chunk((4, 5), 64, [1], True)]
    (group,) = Batch.from_chunks(chunks).groups
    assert group.page_table.tolist() == [[3, 0], [4, 5]]
    assert group.page_table.dtype == torch.int64


@pytest.mark.parametrize("num_tokens", [1, 100, SPAN_TOKENS])
def test_a_group_is_bounded_however_many_spans_there_are(num_tokens: int) -> None:
    """Each span is in one group, and only those are alone that are too large with another."""
    starts = range(0, 20_000, 250)
    pages = tuple(range(400))
    chunks = [Chunk(pages, start, [0] * num_tokens, 0) for start in starts]
    batch = Batch.from_chunks(chunks)
    assert sorted(row for group in batch.groups for row in group.rows.flatten().tolist()) == list(
        range(len(starts) * num_tokens)
    )
    for group in batch.groups:
        num_keys = group.page_table.numel() * PAGE_TOKENS
        is_alone = len(group.page_table) == 1
        assert is_alone or (num_keys <= GROUP_KEYS and num_keys * num_tokens <= GROUP_SCORES)
    assert len(batch.groups) < len(chunks)
