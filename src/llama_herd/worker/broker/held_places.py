"""The places of a worker that its queues' messages take: some for jobs, others for tasks until their ETA."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from celery.worker.state import reserved_requests

from llama_herd.tasks.app import app
from llama_herd.worker import process
from llama_herd.worker.broker.queue_order import QueuePlaces
from llama_herd.worker.settings import NUM_LOOK_AHEAD

if TYPE_CHECKING:
    from llama_herd.worker.broker.queue_channel import QueueChannel


class HeldPlaces:
    """Counts the messages that a channel holds by their queues, and says which queues may give one more."""

    def __init__(self, channel: "QueueChannel") -> None:
        self._channel = channel
        self.now = QueuePlaces(process.own_settings().num_places, NUM_LOOK_AHEAD)

    @property
    def _queues(self) -> Sequence[str]:
        queues: Sequence[str] = self._channel.active_queues
        return queues

    @cached_property
    def _later(self) -> QueuePlaces:
        """Beyond its limit Celery would count messages for later among those for now."""
        num = app.conf.worker_eta_task_limit - process.own_settings().num_places
        return QueuePlaces(num, num // (2 * len(self._queues)))

    @property
    def num_in_hand(self) -> Counter[str]:
        """Messages by queue, but for those whose ETA has not come; nobody asks where there is one queue."""
        requests = reserved_requests if len(self._queues) > 1 else ()
        return Counter(request.delivery_info["routing_key"] for request in requests)

    @property
    def counts_later(self) -> bool:
        """Whether it matters whose messages are for later: of one queue Celery's own limit does."""
        return len(self._queues) > 1 and len(self._channel.qos._delivered) > self._later.num_own

    def open_now(self, num_in_hand: Mapping[str, int]) -> set[str]:
        """The queues of which one more message for now may be taken."""
        return self.now.open_to(self._queues, num_in_hand)

    def open_later(self, num_in_hand: Counter[str]) -> set[str]:
        """The queues of which one more message for later may be taken."""
        if not self.counts_later:
            return set(self._queues)
        return self._later.open_to(self._queues, self._channel.qos.num_held() - num_in_hand)

    @property
    def taken_by_later(self) -> Counter[str]:
        """How many messages are for later, by queue, where these take the places of jobs."""
        queues, num_later = self._queues, Counter[str]()
        if len(queues) == 1:
            num = self._channel.qos.num - len(reserved_requests)
            num_later.update(dict.fromkeys(queues, num if num > self._later.num else 0))
        elif self.counts_later:
            num_later = self._channel.qos.num_held() - self.num_in_hand
            for queue in self._later.open_to(queues, num_later):
                del num_later[queue]
        return +num_later
