"""Continuity: whether each event of a job goes on from those that a reader has passed on.

A promoted replica, or a Redis after a power loss, may lack events that were read. Where their worker does not
write them again, others get their numbers.
"""

from collections import Counter
from hashlib import sha256

from llama_herd.tasks.protocol.events import End, Event, Started, Token, Vectors


class Continuity:
    """What the events of one job have in common with those before them: an attempt, and positions."""

    def __init__(self, *, is_whole: bool, cursor: str | None = None) -> None:
        """is_whole: the first event will be the job's first. cursor: the first event must be this one."""
        self._is_whole = is_whole
        self._cursor = cursor
        self._epoch: int | None = None  # of the attempt whose tokens or vectors come; None: unknown
        self._nums = Counter[int]()  # of tokens, by output
        self._num_vectors = 0
        self._text_hash = sha256()

    def goes_on(self, event: Event) -> bool:
        """Whether an event can follow those that were noted."""
        if self._cursor is not None:
            return event.cursor == self._cursor
        match event:
            case Token():
                choice = event.choice or 0
                is_known = self._is_whole or choice in self._nums
                # An attempt that has not started may still tell text that was withheld of earlier tokens.
                is_announced = not event.ids or self._epoch in (None, event.epoch)
                return is_announced and (not is_known or event.i == self._nums[choice])
            case Vectors():
                return self._epoch in (None, event.epoch)
            case End(error=None) if self._is_whole:
                is_all = event.n == self._nums.total() + self._num_vectors
                return is_all and event.text_sha256 in (None, self._text_hash.hexdigest())
        return True

    def note(self, event: Event) -> None:
        """Note an event that is passed on, or was before."""
        self._cursor = None
        match event:
            case Started():
                self._epoch = event.epoch
            case Token():
                self._nums[event.choice or 0] = event.i + len(event.ids)
                self._text_hash.update(event.text.encode())
                self._epoch = event.epoch if event.ids else self._epoch
            case Vectors():
                self._num_vectors += len(event.texts)
                self._epoch = event.epoch
