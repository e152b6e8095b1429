"""Whose message a worker of several queues takes next, and from which of a queue's lists."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llama_herd.tasks.priority import lanes_in_turn


@dataclass(frozen=True)
class Places:
    """How many messages a worker may hold, and how many of these places are each queue's own.

    What one tenant sends may stay for ever, as a job whose record is broken. The others keep their places.
    """

    num: int
    num_own: int

    def open_to(self, queues: Sequence[str], num_held: Mapping[str, int]) -> set[str]:
        """The queues that may have one more message: in a place of their own, or in one that is nobody's."""
        num_free = self.num - sum(max(num_held[queue], self.num_own) for queue in queues)
        return {queue for queue in queues if num_free > 0 or num_held[queue] < self.num_own}


class QueueOrder:
    """Orders the queues by what their messages hold of the worker, and their lists by priority.

    So each tenant gets its part of the batch, however long or urgent the others' jobs are.
    """

    def __init__(self) -> None:
        self._num_read = Counter[str]()
        #: By queue: the place of its last message among all.
        self._last_read = Counter[str]()

    def note(self, queue: str) -> None:
        """A message of this queue was read."""
        self._num_read[queue] += 1
        self._last_read[queue] = self._num_read.total()

    def lists(self, queues: Sequence[str], num_in_hand: Mapping[str, int]) -> list[str]:
        """The lists of these queues, the one to be asked first at the front.

        The queue with the fewest messages in hand comes first, equal ones in turn. Messages whose ETA has
        not come are in nobody's hand.
        """
        ordered = sorted(queues, key=lambda queue: (num_in_hand[queue], self._last_read[queue]))
        return [queue + lane for queue in ordered for lane in lanes_in_turn(self._num_read[queue])]

    def of_next(self, queue: str, num: int) -> list[list[str]]:
        """The lists of one queue, for each of its next `num` messages."""
        num_read = self._num_read[queue]
        return [[queue + lane for lane in lanes_in_turn(num_read + place)] for place in range(num)]
