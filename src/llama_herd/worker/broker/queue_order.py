"""From which queue a worker takes its next message, and from which of the queue's lists."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llama_herd.tasks.protocol.priority import lanes_in_turn


@dataclass(frozen=True)
class QueuePlaces:
    """How many messages a worker may hold, and how many of these places are reserved for each queue.

    Messages of one tenant may stay for ever, such as those of a job with a broken record. The other tenants
    keep their places.
    """

    num: int
    num_own: int

    def open_to(self, queues: Sequence[str], num_held: Mapping[str, int]) -> set[str]:
        """The queues that may give one more message: into a place of their own, or into a common one."""
        num_free = self._num_free(queues, num_held)
        return {queue for queue in queues if num_free > 0 or num_held[queue] < self.num_own}

    def left_to(self, queue: str, queues: Sequence[str], num_held: Mapping[str, int]) -> int:
        """How many more messages one of the queues may give."""
        return max(0, self._num_free(queues, num_held)) + max(0, self.num_own - num_held[queue])

    def _num_free(self, queues: Sequence[str], num_held: Mapping[str, int]) -> int:
        """Common places that are free."""
        return self.num - sum(max(num_held[queue], self.num_own) for queue in queues)


class QueueOrder:
    """Orders the queues by how many of their messages the worker holds, and their lists by priority.

    So each tenant gets its share of the batch, however long or urgent the others' jobs are.
    """

    def __init__(self) -> None:
        self._num_read = Counter[str]()
        #: By queue: the place of its last message among all.
        self._last_read = Counter[str]()

    def note(self, queue: str) -> None:
        """Note that a message of this queue was read."""
        self._num_read[queue] += 1
        self._last_read[queue] = self._num_read.total()

    def in_turn(self, queues: Sequence[str], num_in_hand: Mapping[str, int]) -> list[str]:
        """These queues, the one whose turn it is at the front.

        The queue with the fewest messages in hand comes first, equal ones take turns. Messages whose ETA has
        not come are not counted as in hand.
        """
        return sorted(queues, key=lambda queue: (num_in_hand[queue], self._last_read[queue]))

    def num_in_turn(self, queues: Sequence[str], num_in_hand: Mapping[str, int], most: int) -> int:
        """How many messages the first of these queues gives before it is another's turn, of `most` at most.

        All have messages, and are in turn: it goes on until it has as many in hand as one behind it.
        """
        first, *behind = queues
        return max(1, min([most, *(num_in_hand[other] - num_in_hand[first] for other in behind)]))

    def of_next(self, queue: str, num: int) -> list[list[str]]:
        """The lists of one queue, for each of its next `num` messages."""
        num_read = self._num_read[queue]
        return [[queue + lane for lane in lanes_in_turn(num_read + place)] for place in range(num)]
