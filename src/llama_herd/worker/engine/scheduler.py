"""Chooses the next batch. Plain Python: no tensor, no queue, no clock."""

from itertools import islice, takewhile
from typing import NamedTuple

from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.prefix_cache import Digest, PrefixCache
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.prompt_shares import shares_of, watched_tokens
from llama_herd.worker.engine.runner import Row
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.wait_queue import WaitEntry, WaitQueue

#: How often a sequence may lose its place. Each time it waits a level higher.
MAX_PREEMPTIONS = 3

#: So many of those that wait are asked whether others are to leave for them: each looks at all rows.
MAX_LOOKS = 8


class Urgent(NamedTuple):
    """One for whom others leave, and the first in the queue that it passes, if any."""

    entry: WaitEntry
    passed: WaitEntry | None


class Scheduler:
    """Sequences wait, run and leave. One is admitted when the cache has room for its prompt and max_tokens.

    So the cache cannot run out on the way. WaitQueue says who is next. If that one has a higher priority than
    some that run and finds no room, it takes their places: the youngest of the lowest priority wait again,
    and go on from their ids. All outputs of a job leave together, and none more than MAX_PREEMPTIONS times.
    """

    def __init__(self, prefixes: PrefixCache, *, max_rows: int, prefill: PrefillBudget) -> None:
        """A step has at most `max_rows` rows, and prompt tokens as `prefill` allows."""
        self._prefixes = prefixes
        self.prefill = prefill
        self._may_fit = False  # whether anything has changed since no waiting sequence was found to fit
        self.waiting = WaitQueue()
        self.running: list[Sequence] = []
        #: Not running any more, but part of a step that was not read yet: which of them will wait again.
        self._leaving: dict[Sequence, bool] = {}
        self._urgent: Urgent | None = None
        self.num_preemptions = 0
        self._left: list[Sequence] = []
        self._free_slots = list(reversed(range(max_rows)))
        self._num_idle = 0  # steps that rows with prompts have waited for fuller ones, all together

    @property
    def has_work(self) -> bool:
        """Whether a step would admit or compute anything."""
        return bool(self.waiting and self._may_fit) or any(sequence.is_confirmed for sequence in self.running)

    @property
    def may_gather(self) -> bool:
        """Whether more prompts could come into the next step, and no stream would wait for them."""
        ready = [sequence for sequence in self.running if sequence.is_confirmed]
        has_room = bool(self._free_slots) or len(ready) < len(self.running)
        return has_room and not any(sequence.decodes for sequence in ready)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.join(sequence)
        self._may_fit = True

    def admit(self) -> list[Sequence]:
        """Admit the sequences that there is room for, in the order of the queue, and return them.

        They come in the order of their reservations: a later one may have been given pages that an earlier
        one copies. An urgent one takes places of others. Where steps overlap these are free when the last was
        read, and nobody else is admitted until then.
        """
        admitted: set[Sequence] = set()
        while True:
            if self._urgent is None:
                admitted.update(self._admit_fitting())
                self._urgent = self._next_urgent()
            if self._urgent is None or any(self._leaving.values()):
                # One that had passed it may have lost its place again, or have got it twice.
                return [one for one in self.running if one in admitted]
            entry, passed = self._urgent
            if self._free_slots and self._reserve(entry.sequence):
                admitted.add(self._admit(entry))
                if passed is not None:
                    passed.num_passed += entry.sequence.num_reserved
                self._urgent = None
            elif not self._preempt_for(entry.sequence):
                entry.may_preempt = False  # pages must lie side by side, and those that stay part them
                self._urgent = None

    def _admit_fitting(self) -> list[Sequence]:
        admitted: list[Sequence] = []
        while self._may_fit and self._free_slots:
            entry = self._reserve_first()
            if entry is None:
                self._may_fit = False
            else:
                admitted.append(self._admit(entry))
        return admitted

    def _admit(self, entry: WaitEntry) -> Sequence:
        self.waiting.admit(entry)
        entry.sequence.slot = self._free_slots.pop()
        self.running.append(entry.sequence)
        return entry.sequence

    def next_batch(self) -> list[Row]:
        """All sequences that decode, and as much prefill as the token budget allows.

        Where all that decode can wait, prompts of those that cannot are computed whole. Where all can wait,
        prompts may wait for others.
        """
        running = [sequence for sequence in self.running if sequence.is_ready]
        prefilling = [sequence for sequence in running if not sequence.decodes]
        can_wait = self.waiting.can_wait and all(sequence.can_wait for sequence in self.running)
        some_decode = len(prefilling) < len(running)
        num_idle = self._num_idle + len(prefilling)
        # A later step with more prompts in it may save more than the rows of these lose until then.
        if can_wait and some_decode and self.prefill.pays_to_wait(num_idle, len(running)):
            self._num_idle = num_idle
            return [Row.of(sequence, 1) for sequence in running if sequence.decodes]
        self._num_idle = 0
        usual = self._prompt_tokens(running, prefilling, can_wait=can_wait)
        of_oldest = (usual + 1) // 2
        whole = min(of_oldest + watched_tokens(running), self.prefill.most)
        shares = dict.fromkeys(running, 1) | shares_of(prefilling, max(usual, whole), of_oldest)
        return [Row.of(sequence, num_tokens) for sequence, num_tokens in shares.items() if num_tokens]

    def _prompt_tokens(self, running: list[Sequence], prefilling: list[Sequence], *, can_wait: bool) -> int:
        """Most prompt tokens of a usual step: few where somebody would wait for the end of it."""
        if not prefilling:
            return 0
        if len(prefilling) == len(running) and len({one.can_wait for one in running}) < 2:
            return self.prefill.alone
        return self.prefill.beside(len(running), can_wait=can_wait)

    def note_computed(self, row: Row) -> None:
        """Note that the row's tokens are in the cache for all that is launched from now on."""
        sequence = row.sequence
        had_prompt = sequence.has_prompt_cached
        sequence.num_cached += row.num_tokens
        sequence.num_drawing += row.is_complete
        sequence.num_flying += 1
        if sequence.has_prompt_cached and not had_prompt:
            self._may_fit = True
        self.publish(sequence)

    def note_read(self, row: Row) -> None:
        """Note that what the row's step found is known. The last one frees what an ended sequence holds."""
        sequence = row.sequence
        sequence.num_drawing -= row.is_complete
        sequence.num_flying -= 1
        if not sequence.num_flying and sequence in self._leaving:
            self._release(sequence, waits_again=self._leaving.pop(sequence))

    def publish(self, sequence: Sequence) -> None:
        """Let full pages serve others, as far as the ids in them are known."""
        if sequence.num_cached < (sequence.num_published + 1) * PAGE_TOKENS:
            return  # as after most steps
        num_known = min(sequence.num_cached, sequence.length, sequence.num_shareable)
        if num_known // PAGE_TOKENS > sequence.num_published:
            digests = sequence.digest_pages(num_known)
            for page in range(sequence.num_published, len(digests)):
                self._prefixes.publish(sequence.pages[page], digests[page])
            sequence.num_published = len(digests)
            self._may_fit = True

    def remove(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        """Remove a sequence, waiting or running; unsound pages are not reused.

        Its pages and its slot are free now, or when the last step that it is part of has been read.
        """
        if sequence in self.running:
            if not is_sound:
                self._prefixes.forget(sequence.digests)
            self._give_place_up(sequence, waits_again=False)
        elif sequence in self._leaving:
            self._leaving[sequence] = False
        else:
            self.waiting.leave(sequence)
            if self._urgent is not None and self._urgent.entry.sequence is sequence:
                self._urgent = None
        self._may_fit = True

    def _next_urgent(self) -> Urgent | None:
        """The first in the queue for whom others may leave, unless a slot is about to be free.

        It may pass one that has waited so long that it comes first, as far as smaller ones may.
        """
        least = min(
            (one.priority for one in self.running if one.num_preemptions < MAX_PREEMPTIONS), default=None
        )
        if least is None or (self._leaving and not self._free_slots):
            return None
        passed: WaitEntry | None = None
        above = takewhile(lambda one: one.priority > least, self.waiting.in_order())
        for entry in islice(above, MAX_LOOKS):
            if self._awaits_prefix(entry):
                continue
            may_pass = passed is None or entry.sequence.num_reserved <= passed.num_left
            if entry.may_preempt and may_pass and self._places_for(entry.sequence):
                return Urgent(entry, passed)
            passed = passed or entry
        return None

    def _places_for(self, urgent: Sequence) -> list[Sequence]:
        """The outputs of the youngest of the lowest jobs below a sequence; none if all hold too little."""
        stay = {one.job for one in self.running if not _may_leave(one, urgent)}
        lower = [one for one in self.running if one.job not in stay]
        if not lower:
            return []
        staying = {page for one in self.running if one.job in stay for page in one.pages}  # each once
        num_left = self._prefixes.pages.num_pages - len(staying)
        num_shared = self._prefixes.num_shared(_wanted_digests(urgent), staying)
        if pages_for(urgent.num_reserved) - num_shared > num_left:
            return []
        youngest = min(reversed(lower), key=lambda one: one.priority)
        return [one for one in lower if one.job == youngest.job]

    def take_left(self) -> list[Sequence]:
        """The sequences that have lost their places since the last call."""
        left, self._left = self._left, []
        return left

    def _preempt_for(self, urgent: Sequence) -> bool:
        """Take the places of one job; whether there was one to take."""
        places = self._places_for(urgent)
        for sequence in places:
            sequence.num_preemptions += 1
            self.num_preemptions += 1
            self._give_place_up(sequence, waits_again=True)
        return bool(places)

    def _give_place_up(self, sequence: Sequence, *, waits_again: bool) -> None:
        self.running.remove(sequence)
        if sequence.num_flying:
            self._leaving[sequence] = waits_again
        else:
            self._release(sequence, waits_again=waits_again)

    def _release(self, sequence: Sequence, *, waits_again: bool) -> None:
        self._prefixes.release(sequence.info, sequence.digests)
        self._free_slots.append(sequence.slot)
        self._may_fit = True
        if waits_again:
            self._left.append(sequence)
            sequence.give_up_place()
            self.waiting.join(sequence)

    def _reserve_first(self) -> WaitEntry | None:
        """Reserve pages for the first sequence in the queue that fits now.

        Smaller sequences may pass one that does not fit, so that rows are not idle meanwhile. Together they
        reserve no more tokens than the one they pass, so they delay it by no more steps than it has tokens.
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
            max_tokens = min(blocked.num_left, num_tokens - 1)
        return None

    def _awaits_prefix(self, entry: WaitEntry) -> bool:
        """Whether another sequence is computing the next part of this prompt: waiting for it is cheaper.

        Sequences behind need not wait too, since this one takes no room yet.
        """
        relatives = self._running_relatives(entry.sequence)
        if relatives:
            return not relatives[0].has_prompt_cached
        if not self._prefixes.is_promised(entry.awaited):
            entry.awaited = self._prefixes.awaited(_wanted_digests(entry.sequence))
        return entry.awaited is not None

    def _reserve(self, sequence: Sequence) -> bool:
        """Reserve pages for prompt and max_tokens; the prompt of another output of the job is taken over."""
        num_tokens, relatives = sequence.num_reserved, self._running_relatives(sequence)
        if relatives:
            num_common = len(sequence.prompt_ids) - 1
            reservation = self._prefixes.fork(sequence.info, num_tokens, relatives[0].pages, num_common)
        else:
            reservation = self._prefixes.reserve(sequence.info, num_tokens, _wanted_digests(sequence))
        if reservation is None:
            return False
        sequence.pages, sequence.copies = reservation.pages, reservation.copies
        sequence.num_cached = reservation.num_filled
        sequence.num_published = reservation.num_filled // PAGE_TOKENS
        return True

    def _running_relatives(self, sequence: Sequence) -> list[Sequence]:
        """The running outputs of the same job, by admission; none helps who scores the prompt."""
        if sequence.params.n == 1 or sequence.scores_prompt:
            return []
        return [one for one in self.running if one.job == sequence.job]


def _may_leave(sequence: Sequence, urgent: Sequence) -> bool:
    """Whether it may lose its place: to none of another tenant, or all of that would call itself urgent.

    Nor while its prompt is scored: scores of a part would be lost.
    """
    is_lower = sequence.priority < urgent.priority and sequence.tenant == urgent.tenant
    return is_lower and sequence.num_preemptions < MAX_PREEMPTIONS and not sequence.scores_prompt


def _wanted_digests(sequence: Sequence) -> list[Digest]:
    """Digests of the pages worth finding: never the last token's page, since its logits are needed."""
    if sequence.scores_prompt:
        return []
    return sequence.digest_pages(min(sequence.length - 1, sequence.num_shareable))
