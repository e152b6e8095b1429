"""Continuity: whether each event of a job goes on from those that a reader has passed on.

A promoted replica, or a Redis after a power loss, may lack events that were read. Where their worker does not
write them again, others get their numbers.
"""

from collections import Counter
from hashlib import sha256

from llama_herd.tasks.protocol.events import End, Event, Started, Token, Vectors


class Continuity:
    """What the events of one job have in common with those before them: an attempt, and positions."""

    def __init__(self, *, is_whole: bool) -> None:
        """is_whole: the first event will be the job's first."""
        self._is_whole = is_whole
        self._epoch: int | None = None  # of the attempt whose tokens or vectors come; None: unknown
        self._nums = Counter[int]()  # of tokens, by output
        self._num_vectors = 0
        self._text_hash = sha256()

    def goes_on(self, event: Event) -> bool:
        """Note an event; returns whether it can follow those that were noted before."""
        match event:
            case Started():
                self._epoch = event.epoch
            case Token():
                return self._note_tokens(event, event.choice or 0)
            case Vectors():
                self._num_vectors += len(event.texts)
                return self._is_of_attempt(event.epoch)
            case End(error=None) if self._is_whole:
                is_all = event.n == self._nums.total() + self._num_vectors
                return is_all and event.text_sha256 in (None, self._text_hash.hexdigest())
        return True

    def _note_tokens(self, event: Token, choice: int) -> bool:
        is_known = self._is_whole or choice in self._nums
        is_next = not is_known or event.i == self._nums[choice]
        self._nums[choice] = event.i + len(event.ids)
        self._text_hash.update(event.text.encode())
        # An attempt that has not started may still tell text that was withheld of earlier tokens.
        return is_next and (not event.ids or self._is_of_attempt(event.epoch))

    def _is_of_attempt(self, epoch: int) -> bool:
        """Whether the events of this epoch were announced by a start, as far as that is known."""
        was, self._epoch = self._epoch, epoch
        return was in (None, epoch)
