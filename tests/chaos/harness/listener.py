"""A subscriber to everything, by pub/sub alone, which may miss events."""

import threading
from array import array
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from time import sleep

from redis.exceptions import RedisError

from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.ledger import Ledger
from tests.chaos.harness.patience import PATIENCE_S

PAUSE_S = 0.05


def event_fingerprint(text: bytes) -> int:
    """A hash of an event, valid within this process: 8 bytes, as a long run has millions of events."""
    return hash(text)


class EventListener(threading.Thread):
    """Keeps the fingerprints of the events that it receives."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        super().__init__(name="listener", daemon=True)
        self._subscriptions: list[dict[str, array[int]]] = []
        self._redis = connect(url, tries=0)
        self._pattern = ledger.channel("*")
        self._is_stopping = threading.Event()
        self._is_subscribed = threading.Event()

    def start(self) -> None:
        """Return once it is subscribed. Raises TimeoutError."""
        super().start()
        if not self._is_subscribed.wait(PATIENCE_S):
            raise TimeoutError(f"no subscription within {PATIENCE_S:.0f} s")

    def heard(self, job_id: str) -> list[Sequence[int]]:
        """The fingerprints of a job's events, in order, one list per subscription that brought any."""
        return [prints[job_id] for prints in list(self._subscriptions) if job_id in prints]

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            with suppress(RedisError):
                self._listen()
            sleep(PAUSE_S)

    def _listen(self) -> None:
        prints: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._subscriptions.append(prints)
        with self._redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.psubscribe(self._pattern)
            while not self._is_stopping.is_set():
                message = pubsub.get_message(timeout=0.1)
                if message is not None and message["type"] == "psubscribe":
                    self._is_subscribed.set()
                elif message is not None:
                    job_id = message["channel"].decode().rpartition(":")[2]
                    prints[job_id].append(event_fingerprint(message["data"]))
