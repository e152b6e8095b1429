"""Batch: the tokens of one forward, of many sequences, prefill and decode together.

Shapes: T tokens of the ragged batch, R rows that want logits, t tokens of a span, B spans, P pages. Of a
batch told by slots: B rows, N slots, P pages of a sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Self, TypeAlias

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Seen, SeenSpans
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.tiling import GROUP_KEYS, GROUP_SCORES, SHORT_TOKENS, SPAN_TOKENS
from llama_herd.model.upload import Send, send_rows, upload


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one sequence, the first at position `start`; one token when it decodes.

    `pages` hold the whole sequence, in order. The last `num_logits` tokens get logits.
    """

    pages: tuple[int, ...]
    start: int
    ids: Sequence[int]
    num_logits: int

    def __post_init__(self) -> None:
        assert 0 <= self.num_logits <= len(self.ids) > 0, f"{self.num_logits} logits, {len(self.ids)} tokens"
        assert self.stop <= len(self.pages) * PAGE_TOKENS, f"{self.stop} tokens in {len(self.pages)} pages"

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + len(self.ids)

    def cell(self, position: int) -> int:
        """The cell of the token at `position`: its number among all tokens of all pages of the cache."""
        return self.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS


@dataclass(frozen=True)
class Span:
    """Tokens of a chunk that attend at once: rows `first_row`.. of the batch, positions `start`..`stop`."""

    pages: tuple[int, ...]
    start: int
    stop: int
    first_row: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def is_short(self) -> bool:
        return self.num_tokens <= SHORT_TOKENS

    @property
    def rows(self) -> range:
        return range(self.first_row, self.first_row + self.num_tokens)

    @property
    def first_cell(self) -> int:
        """The cell of the sequence's first token, when its pages are consecutive."""
        return self.pages[0] * PAGE_TOKENS


@dataclass(frozen=True)
class SpanGroup:
    """Spans of one length, stacked; page tables are filled up with page 0 to the longest."""

    rows: Tensor  # (B, t) of the batch
    positions: Tensor  # (B, t)
    page_table: Tensor  # (B, P)


@dataclass(frozen=True, eq=False)
class Batch:
    """A ragged batch. Rows of logits come in the order of the tokens that want them."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,)
    cells: Tensor  # (T,) where keys and values go
    logit_rows: Tensor  # (R,)
    spans: tuple[Span, ...]
    send: Send  # for what is made of the spans when it is asked for

    @classmethod
    def from_chunks(
        cls,
        chunks: Sequence[Chunk],
        device: torch.device | str = "cpu",
        span_tokens: int = SPAN_TOKENS,
    ) -> Self:
        """Lay the chunks' tokens one after the other. No two chunks may be of one sequence.

        At most `span_tokens` tokens of a chunk attend at once.
        """
        send = partial(upload, device=device)
        ids: list[int] = []
        positions: list[int] = []
        cells: list[int] = []
        logit_rows: list[int] = []
        spans: list[Span] = []
        for chunk in chunks:
            spans += _spans(chunk, span_tokens, first_row=len(ids))
            ids += chunk.ids
            positions += range(chunk.start, chunk.stop)
            cells += map(chunk.cell, range(chunk.start, chunk.stop))
            logit_rows += range(len(ids) - chunk.num_logits, len(ids))
        token_rows = send_rows([ids, positions, cells], send)
        return cls(token_rows[0], token_rows[1], token_rows[2], send(logit_rows), tuple(spans), send)

    @cached_property
    def groups(self) -> tuple[SpanGroup, ...]:
        """The spans stacked by length, for an attention that reads pages through a table."""
        return self._groups(self.spans)

    @cached_property
    def long_spans(self) -> tuple[Span, ...]:
        """The spans of prompts."""
        return tuple(span for span in self.spans if not span.is_short)

    @cached_property
    def long_groups(self) -> tuple[SpanGroup, ...]:
        """The long spans stacked by length."""
        return self._groups(self.long_spans)

    def _groups(self, spans: Sequence[Span]) -> tuple[SpanGroup, ...]:
        length = attrgetter("num_tokens")
        by_length = groupby(sorted(spans, key=attrgetter("num_tokens", "stop")), key=length)
        lots = (lot for _, spans in by_length for lot in _group_lots(list(spans)))
        return tuple(self._group(lot) for lot in lots)

    @cached_property
    def is_short(self) -> bool:
        """Whether all spans are short: what decodes, and no prompt."""
        return not self.long_spans

    @cached_property
    def seen(self) -> Seen:
        """The tokens of short spans and the keys that each sees, for an attention of single tokens."""
        short = [span for span in self.spans if span.is_short]
        return self._seen(short, [span.num_tokens for span in short])

    @cached_property
    def seen_spans(self) -> SeenSpans:
        """The long spans and the keys that their tokens see, for an attention of whole spans."""
        num_tokens = [span.num_tokens for span in self.long_spans]
        first = self._seen(self.long_spans, [1] * len(self.long_spans))
        return SeenSpans(first, self.send(num_tokens), max(num_tokens))

    def _seen(self, spans: Sequence[Span], counts: Sequence[int]) -> Seen:
        """The first tokens of each span, as many as `counts` says, and the keys that each sees."""
        rows: list[int] = []
        num_keys: list[int] = []
        tables: list[int] = []
        pages: list[int] = []
        for span, count in zip(spans, counts, strict=True):
            rows += span.rows[:count]
            num_keys += range(span.start + 1, span.start + 1 + count)
            tables += [len(pages)] * count
            pages += span.pages[: pages_for(span.stop)]
        token_rows = send_rows([rows, num_keys, tables], self.send)
        return Seen(token_rows[0], token_rows[1], token_rows[2], self.send(pages))

    def _group(self, spans: list[Span]) -> SpanGroup:
        num_pages = max(pages_for(span.stop) for span in spans)
        rows = send_rows([span.rows for span in spans], self.send)
        tables = [(*span.pages[:num_pages], *[0] * (num_pages - len(span.pages))) for span in spans]
        return SpanGroup(rows, self.positions[rows], send_rows(tables, self.send))


@dataclass(frozen=True, eq=False)
class StepBatch:
    """A batch in tensors of the device, without numbers on the host: it can be captured.

    First come tokens that want logits, one of each of B sequences; then those of prompts, which want none.
    """

    ids: Tensor  # (T,)
    positions: Tensor  # (T,)
    cells: Tensor  # (T,)
    slots: Tensor  # (T,): the sequences' rows of `page_table`
    tables: Tensor  # (T,): where in `pages` those of each sequence begin
    pages: Tensor  # (any,): holds all page tables, among other things
    page_table: Tensor  # (N, P)
    num_rows: int  # B
    prompts: SeenSpans | None  # None: there are none

    @cached_property
    def logit_rows(self) -> Tensor:
        """The rows that get logits."""
        return torch.arange(self.num_rows, device=self.ids.device)

    @cached_property
    def groups(self) -> tuple[SpanGroup, ...]:
        """All tokens in one group, for attention in plain torch."""
        rows, positions = self.each_seen.rows.unsqueeze(-1), self.positions.unsqueeze(-1)  # (T, 1) each
        return (SpanGroup(rows, positions, self.page_table[self.slots]),)

    @cached_property
    def seen(self) -> Seen:
        """The tokens that want logits, and the keys that each sees."""
        num = self.num_rows
        return Seen(self.logit_rows, self.positions[:num] + 1, self.tables[:num], self.pages)

    @cached_property
    def each_seen(self) -> Seen:
        """All tokens, one by one, and the keys that each sees."""
        rows = torch.arange(len(self.ids), device=self.ids.device)
        return Seen(rows, self.positions + 1, self.tables, self.pages)

    @property
    def is_short(self) -> bool:
        """Whether there are no prompts."""
        return self.prompts is None

    @property
    def seen_spans(self) -> SeenSpans:
        """The tokens of prompts, and the keys that they see, for an attention of whole spans."""
        assert self.prompts is not None, "a step without prompts"
        return self.prompts


#: A batch of either kind.
AnyBatch: TypeAlias = Batch | StepBatch


def _spans(chunk: Chunk, span_tokens: int, first_row: int) -> Iterator[Span]:
    for start in range(chunk.start, chunk.stop, span_tokens):
        stop = min(start + span_tokens, chunk.stop)
        yield Span(chunk.pages, start, stop, first_row + start - chunk.start)


def _group_lots(spans: list[Span]) -> Iterator[list[Span]]:
    """Spans of one length, those that end first before the others, in lots within the bounds of a group."""
    lot: list[Span] = []
    for span in spans:
        num_keys = (len(lot) + 1) * pages_for(span.stop) * PAGE_TOKENS
        if lot and (num_keys > GROUP_KEYS or num_keys * span.num_tokens > GROUP_SCORES):
            yield lot
            lot = []
        lot.append(span)
    yield lot
