"""Renews the leases of this worker's jobs, hears of cancels, and reports the worker's status."""

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import structlog
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.answers import Renewal, Renewed
from llama_herd.tasks.ledger.kept_scripts import KEPT_SCRIPTS
from llama_herd.tasks.ledger.notice import read_notice
from llama_herd.tasks.ledger.redis_call import keep_loaded, run, run_many
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.lease_holder import LeaseHolder

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: How soon a stop or `report_soon` is noticed between two beats.
LISTEN_S = 0.2


class Heartbeat(threading.Thread):
    """Renews the leases of all claimed jobs once a second, while the engine moves; between beats it listens.

    Each event of a running job renews its lease anyway; this is for jobs that wait or prefill. A stalled
    engine loses its jobs to other workers, since nothing renews their leases then.
    """

    def __init__(
        self,
        holder: LeaseHolder,
        *,
        claims: ClaimedJobs,
        engine: EngineThread,
        status: Callable[[], WorkerStatus],
        stall_s: float,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._holder = holder
        self._redis = holder.redis
        self._reports = Reports(holder.ledger.tenant)
        self._claims = claims
        self._engine = engine
        self._status = status
        self._stall_s = stall_s
        self._is_stopping = threading.Event()
        self._next_beat_s = 0.0

    def report_soon(self) -> None:
        """Beat soon, since the worker's last report is no longer true."""
        self._next_beat_s = 0.0

    def stop(self) -> None:
        """Its last report is of a worker that stops: others give no jobs to one that is gone."""
        self._is_stopping.set()
        self.join()
        with suppress(RedisError):
            run(self._redis, self._reports.report_worker(self._status()))

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except RedisError:
                self._is_stopping.wait(INTERVAL_S)

    def _listen(self) -> None:
        """Beat; between two beats act on cancel notices at once."""
        with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(self._holder.ledger.control_channel)
            self.report_soon()
            while not self._is_stopping.is_set():
                if monotonic() >= self._next_beat_s:
                    self._next_beat_s = monotonic() + INTERVAL_S
                    self._beat()
                rest_s = self._next_beat_s - monotonic()
                message = pubsub.get_message(timeout=max(0.0, min(LISTEN_S, rest_s)))
                notice = read_notice(message["data"]) if message else None
                if notice is not None:
                    self._cancel(notice.job, notice.cancel)

    def _beat(self) -> None:
        """Renew first, as jobs depend on it; the reports fail while a key of the tenant is spoilt."""
        if self._engine.is_stalled(self._stall_s):
            log.error("engine stalled, other workers will take its jobs", stall_s=self._stall_s)
        else:
            self._renew()
        run(self._redis, self._reports.report_worker(self._status()))
        keep_loaded(self._redis, KEPT_SCRIPTS)

    def _renew(self) -> None:
        attempts = self._claims.in_hand()
        answers = run_many(self._redis, [self._holder.renew(attempt) for attempt in attempts])
        for attempt, answer in zip(attempts, answers, strict=True):
            if isinstance(answer, Renewed) and answer.kind is Renewal.CANCELLED:
                self._cancel(attempt.job_id, answer.reason)

    def _cancel(self, job_id: str, reason: str) -> None:
        attempt = self._claims.get(job_id)
        if attempt is None:
            return
        attempt.abort = attempt.abort or ("deadline" if reason == "deadline" else "cancelled")
        self._engine.abort(attempt.sequences, attempt.abort)
