"""Chooses the next batch. Plain Python: no tensor, no queue, no clock."""

from dataclasses import dataclass

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.prefix_cache import Digest, PrefixCache
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.wait_queue import WaitEntry, WaitQueue

#: Most prompt tokens of a step that are scored: the logits of each are a row of the whole vocabulary.
MAX_SCORED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: its next `num_tokens` tokens, one when it decodes."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_complete(self) -> bool:
        """Whether the step brings the sequence so far that its next token can be drawn."""
        return self.num_tokens == self.sequence.num_uncached

    @property
    def num_scores(self) -> int:
        """Prompt tokens of which the step is to say how likely they were: those after the row's own."""
        return self.num_tokens - self.is_complete if self.sequence.scores_prompt else 0

    @property
    def num_logits(self) -> int:
        """Tokens, the row's last ones, whose logits are wanted."""
        return self.num_scores + self.is_complete


class Scheduler:
    """Sequences wait, run and leave. A sequence is admitted when the cache has room for all it may become.

    So memory cannot run out on the way, and nothing is ever put back. WaitQueue says who is next.
    """

    def __init__(self, prefixes: PrefixCache, *, max_rows: int, prefill: PrefillBudget) -> None:
        """A step has at most `max_rows` rows, and prompt tokens as `prefill` allows."""
        self._prefixes = prefixes
        self._max_rows = max_rows
        self.prefill = prefill
        self._may_fit = False  # whether anything has changed since all who wait were found not to fit
        self.waiting = WaitQueue()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would admit or compute anything."""
        return bool(self.waiting and self._may_fit) or any(not sequence.is_held for sequence in self.running)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.join(sequence)
        self._may_fit = True

    def admit(self) -> list[Sequence]:
        """Let in what has room, in the order of the line; return whom."""
        admitted: list[Sequence] = []
        while self._may_fit and len(self.running) < self._max_rows:
            entry = self._reserve_first()
            if entry is None:
                self._may_fit = False
            else:
                self.waiting.admit(entry)
                self.running.append(entry.sequence)
                admitted.append(entry.sequence)
        return admitted

    def next_batch(self) -> list[Row]:
        """All that decode, and of those that prefill as much as the token budget allows."""
        running = [sequence for sequence in self.running if not sequence.is_held]
        prefilling = [sequence for sequence in running if sequence.num_uncached > 1]
        is_alone = len(prefilling) == len(running)
        budget = self.prefill.alone if is_alone else self.prefill.beside
        shares = dict.fromkeys(running, 1) | _shares(prefilling, budget)
        return [Row(sequence, num_tokens) for sequence, num_tokens in shares.items() if num_tokens]

    def note_computed(self, row: Row) -> None:
        """The row's tokens are in the cache now; full pages may serve others."""
        sequence, first = row.sequence, row.sequence.num_cached // PAGE_TOKENS
        had_prompt = sequence.has_prompt_cached
        sequence.num_cached += row.num_tokens
        if sequence.has_prompt_cached and not had_prompt:
            self._may_fit = True
        if sequence.num_cached // PAGE_TOKENS > first:
            digests = sequence.digest_pages(sequence.num_cached)
            for page in range(first, len(digests)):
                self._prefixes.publish(sequence.pages[page], digests[page])
            self._may_fit = True

    def remove(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        """Take a sequence out, wherever it is, and free its pages; unsound ones are not kept for others."""
        if sequence in self.running:
            self.running.remove(sequence)
            if not is_sound:
                self._prefixes.forget(sequence.digests)
            self._prefixes.release(sequence.name, sequence.digests)
        else:
            self.waiting.leave(sequence)
        self._may_fit = True

    def _reserve_first(self) -> WaitEntry | None:
        """Reserve for the first in line that has room now.

        Smaller ones may pass a first that has none, so that rows are not idle while it waits, but together
        no more tokens than it reserves itself: so they delay it by no more steps than it has tokens.
        """
        blocked: WaitEntry | None = None
        max_tokens = self._prefixes.pages.num_pages * PAGE_TOKENS
        for entry in self.waiting.in_order():
            num_tokens = entry.sequence.num_reserved
            if num_tokens > max_tokens or self._awaits_prefix(entry):
                continue
            if self._reserve(entry.sequence):
                if blocked:
                    blocked.num_passed += num_tokens
                return entry
            blocked = blocked or entry
            max_tokens = min(blocked.sequence.num_reserved - blocked.num_passed, num_tokens - 1)
        return None

    def _awaits_prefix(self, entry: WaitEntry) -> bool:
        """Whether somebody is just computing what comes next in the prompt: to wait is the cheaper way.

        Those behind need not wait along, since this one takes no room yet.
        """
        relatives = self._running_relatives(entry.sequence)
        if relatives:
            return not relatives[0].has_prompt_cached
        if not self._prefixes.is_promised(entry.awaited):
            entry.awaited = self._prefixes.awaited(_wanted_digests(entry.sequence))
        return entry.awaited is not None

    def _reserve(self, sequence: Sequence) -> bool:
        """Reserve all that a sequence may become; a relative's prompt is taken over as it is."""
        num_tokens, relatives = sequence.num_reserved, self._running_relatives(sequence)
        if relatives:
            num_common = len(sequence.prompt_ids) - 1
            reservation = self._prefixes.fork(sequence.name, num_tokens, relatives[0].pages, num_common)
        else:
            reservation = self._prefixes.reserve(sequence.name, num_tokens, _wanted_digests(sequence))
        if reservation is None:
            return False
        sequence.pages, sequence.copies = reservation.pages, reservation.copies
        sequence.num_cached = reservation.num_filled
        return True

    def _running_relatives(self, sequence: Sequence) -> list[Sequence]:
        """Those with the same prompt, the one that was admitted first before the others."""
        if sequence.params.n == 1:
            return []
        return [one for one in self.running if one.is_of_one_job_with(sequence)]


def _shares(prefilling: list[Sequence], budget: int) -> dict[Sequence, int]:
    """Tokens for each that prefills: half of the budget to the oldest, the rest to who needs least.

    So no prompt waits for ever, and a short one does not wait for a long one.
    """
    if not prefilling:
        return {}
    oldest, wanted = prefilling[0], _wanted_tokens(prefilling)
    shares = dict.fromkeys(prefilling, 0)
    shares[oldest] = min(wanted[oldest], (budget + 1) // 2)
    left = budget - shares[oldest]
    for sequence in sorted(prefilling, key=lambda one: one.num_uncached):
        more = min(wanted[sequence] - shares[sequence], left)
        shares[sequence] += more
        left -= more
    return shares


def _wanted_tokens(prefilling: list[Sequence]) -> dict[Sequence, int]:
    """How many tokens each lacks; of prompts that are scored together no more than may be in a step."""
    wanted, left = {}, MAX_SCORED_TOKENS
    for sequence in prefilling:
        wanted[sequence] = sequence.num_uncached
        if sequence.scores_prompt:
            wanted[sequence] = min(sequence.num_uncached, left)
            left -= wanted[sequence]
    return wanted


def _wanted_digests(sequence: Sequence) -> list[Digest]:
    """Of the pages worth finding: never the one of the last token, whose logits are wanted."""
    return [] if sequence.scores_prompt else sequence.digest_pages(sequence.length - 1)
