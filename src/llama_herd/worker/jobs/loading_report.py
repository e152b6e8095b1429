"""Reports that a worker loads its model, so that `herd status` shows it long before it takes jobs."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.settings import WorkerSettings

INTERVAL_S = 1.0


class LoadingReport(threading.Thread):
    """Reports once a second to each tenant while its block runs. After that the heartbeats report.

    with LoadingReport(redis, settings, "gpu0@host") as report:
        LoadedModel.load(settings, device, report.note_bytes)
    """

    def __init__(self, redis: Redis, settings: WorkerSettings, worker: str) -> None:
        super().__init__(name="loading report", daemon=True)
        self._redis = redis
        self._settings = settings
        self._worker = worker
        self._percent = 0
        self._has_ended = threading.Event()

    def note_bytes(self, num_done: int, num_bytes: int) -> None:
        """So much of the model's weights is laid out."""
        self._percent = 100 * num_done // num_bytes

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the last report, so that it cannot overwrite a later one of the heartbeat."""
        self._has_ended.set()
        self.join()

    def run(self) -> None:
        while not self._has_ended.wait(INTERVAL_S):  # a model that is refused at once is never reported
            for own in self._settings.by_queue.values():
                with suppress(RedisError):  # the next report comes soon
                    run_call(self._redis, Reports(own.tenant).report_worker(self._status))

    @property
    def _status(self) -> WorkerStatus:
        return WorkerStatus(
            name=self._worker,
            state="loading",
            loaded_percent=self._percent,
            model=self._settings.served_model,
            device=self._settings.device,
            slots=self._settings.slots,
        )
