"""Whose message a worker of several queues takes next, and from which of a queue's lists."""

from collections import Counter
from collections.abc import Iterable

from celery.worker.request import Request

from llama_herd.tasks.priority import lanes_in_turn


class Turns:
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

    def lists(self, queues: Iterable[str], in_hand: Iterable[Request]) -> list[str]:
        """The lists of these queues, the one to be asked first at the front.

        `in_hand` are the requests that the worker has taken, but for those whose ETA has not come.
        """
        ordered = self._by_need(list(queues), in_hand)
        return [queue + lane for queue in ordered for lane in lanes_in_turn(self._num_read[queue])]

    def _by_need(self, queues: list[str], in_hand: Iterable[Request]) -> list[str]:
        """The queue with the fewest messages in hand first; equal ones in turn."""
        if len(queues) > 1:
            num_in_hand = Counter(request.delivery_info["routing_key"] for request in in_hand)
            queues.sort(key=lambda queue: (num_in_hand[queue], self._last_read[queue]))
        return queues
