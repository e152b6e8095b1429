"""A message of our client in a worker's hands, without Celery: nobody waits for its acknowledgement."""

from types import SimpleNamespace
from typing import Any

from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.result_backend import NO_VALUE, ResultValue


class SentMessage(Delivery):
    """Counts how often it is done with."""

    def __init__(self, job_id: str, body: bytes = b"[[], {}, {}]", queue: str = "herd.tiny") -> None:
        """With arguments in its body it is of another client."""
        request: Any = SimpleNamespace(id=job_id, delivery_info={"routing_key": queue})
        headers = {"id": job_id, "properties": {"delivery_tag": f"{job_id}:1:0"}}
        super().__init__(("herd.generate", job_id, headers, body), request, lambda *_: None)
        self.num_done = 0

    @property
    def start(self) -> None:
        """Celery is not told."""

    def settle(self, *_: object, has_sent_links: bool = False) -> ResultValue:
        """Celery is not told of the end either."""
        return NO_VALUE

    def close(self) -> None:
        self.num_done += 1

    def acknowledge(self) -> None:
        self.num_done += 1

    def let_go(self) -> None:
        self.num_done += 1
