"""Prefill: which tokens of prompts a forward computes, told to the device by a few numbers a span."""

from collections.abc import Iterator, Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from llama_herd.worker.engine.runner import Row

#: Most tokens of a span: these attend at once.
SPAN_TOKENS = 64
#: Prompt tokens of a captured forward. Fewer are filled up with tokens of the trash slot.
TOKENS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
#: A captured forward has a span for so many of its tokens: many short prompts take a larger one.
TOKENS_A_SPAN = 8


class PromptSpan(NamedTuple):
    """Consecutive tokens of the sequence in a slot, the first of them at position `start`."""

    slot: int
    start: int
    num_tokens: int


@dataclass(frozen=True)
class Prefill:
    """Prompt tokens of one forward, span by span; the captured one that takes them has room for `bucket`."""

    spans: tuple[PromptSpan, ...]
    num_tokens: int
    bucket: int

    @classmethod
    def of(cls, spans: Rows[PromptSpan]) -> "Prefill":
        num_tokens = sum(span.num_tokens for span in spans)
        least = max(num_tokens, TOKENS_A_SPAN * len(spans))
        return cls(tuple(spans), num_tokens, bucket_of(least))

    @classmethod
    def full(cls, span: PromptSpan, num_tokens: int) -> "Prefill":
        """One without room for more: so many tokens, all from the beginning of one span."""
        most = min(span.num_tokens, SPAN_TOKENS)
        counts = (min(most, num_tokens - first) for first in range(0, num_tokens, most))
        return cls(tuple(span._replace(num_tokens=count) for count in counts), num_tokens, num_tokens)

    def words(self, trash: int) -> list[int]:
        """All that the device is told (4, N): first token among these, how many, position of the first, slot.

        What only fills the forward up is of the last span, which has none.
        """
        num_empty = num_spans(self.bucket) - len(self.spans)
        slots, starts, counts = zip(*self.spans, *[(trash, 0, 0)] * num_empty, strict=True)
        return [0, *accumulate(counts[:-1]), *counts, *starts, *slots]


def bucket_of(num_tokens: int) -> int:
    """The prompt tokens that the captured forward of so many has room for."""
    return next((one for one in (0, *TOKENS) if one >= num_tokens), TOKENS[-1])


def num_spans(bucket: int) -> int:
    """The spans of a captured forward of so many prompt tokens: the last one is always empty."""
    return bucket // TOKENS_A_SPAN + 1


def prefills_of(rows: Rows[Row]) -> list[Prefill]:
    """The prompt tokens of a step, as forwards take them; the last one is full, or the only one.

    The last token of a prompt that is complete is not among them: it is a row that decodes. Those of scored
    prompts come last, and no more of them than a forward takes.
    """
    last_scored = sorted(rows, key=lambda row: row.num_scores > 0)
    prefills, num_tokens = [list[PromptSpan]()], 0
    for span in reversed([span for row in last_scored for span in _spans_of(row)]):
        num_tokens += span.num_tokens
        if num_tokens > TOKENS[-1] or len(prefills[-1]) == TOKENS[-1] // TOKENS_A_SPAN:
            prefills.append([])
            num_tokens = span.num_tokens
        prefills[-1].append(span)
    return [Prefill.of(prefill[::-1]) for prefill in reversed(prefills)]


def _spans_of(row: Row) -> Iterator[PromptSpan]:
    stop = row.start + row.num_tokens - row.is_complete
    for start in range(row.start, stop, SPAN_TOKENS):
        yield PromptSpan(row.sequence.slot, start, min(SPAN_TOKENS, stop - start))
