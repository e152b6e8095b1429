"""Chooses the next batch. Plain Python: no tensor, no queue, no clock."""

from collections import deque
from dataclasses import dataclass

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: its next `num_tokens` tokens, one when it decodes."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_complete(self) -> bool:
        """Whether the step brings the sequence so far that its next token can be drawn."""
        return self.num_tokens == self.sequence.num_uncached


class Scheduler:
    """Sequences wait, run and leave. A sequence is admitted when the cache has room for all it may become.

    So memory cannot run out on the way, and nothing is ever put back. First come, first admitted.
    """

    def __init__(self, prefixes: PrefixCache, *, max_rows: int, prefill_tokens: int) -> None:
        """A step has at most `max_rows` rows and computes at most `prefill_tokens` prompt tokens."""
        self._prefixes = prefixes
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Let in what has room, in order; return whom."""
        admitted = []
        while self.waiting and len(self.running) < self._max_rows and self._reserve(self.waiting[0]):
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def next_batch(self) -> list[Row]:
        """All that decode, and of those that prefill, oldest first, as much as the token budget allows."""
        rows, budget = [], self._prefill_tokens
        for sequence in self.running:
            num_tokens = sequence.num_uncached
            if num_tokens > 1:
                num_tokens = min(num_tokens, budget)
                budget -= num_tokens
            if num_tokens:
                rows.append(Row(sequence, num_tokens))
        return rows

    def note_computed(self, row: Row) -> None:
        """The row's tokens are in the cache now; full pages may serve others."""
        sequence, first = row.sequence, row.sequence.num_cached // PAGE_TOKENS
        sequence.num_cached += row.num_tokens
        digests = sequence.digest_pages(sequence.num_cached)
        for page in range(first, len(digests)):
            self._prefixes.publish(sequence.pages[page], digests[page])

    def remove(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        """Take a sequence out, wherever it is, and free its pages; unsound ones are not kept for others."""
        if sequence in self.running:
            self.running.remove(sequence)
            if not is_sound:
                self._prefixes.forget(sequence.digests)
            self._prefixes.release(sequence.job_id, sequence.digests)
        else:
            self.waiting.remove(sequence)

    def _reserve(self, sequence: Sequence) -> bool:
        """Reserve all that a sequence may become. Its last token is never found: its logits are wanted."""
        digests = sequence.digest_pages(sequence.length - 1)
        reservation = self._prefixes.reserve(sequence.job_id, sequence.num_reserved, digests)
        if reservation is None:
            return False
        sequence.pages, sequence.sources = reservation.pages, reservation.sources
        sequence.num_cached = reservation.num_filled * PAGE_TOKENS
        return True
