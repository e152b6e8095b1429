"""Puts jobs back into the queue: those of dead workers, those whose message was lost, those without room."""

import threading
from collections.abc import Sequence as Rows

import structlog
from redis.exceptions import RedisError

from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.answers import JobOrigin, Swept
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.sweep import due_for_sweep, gather_strays, sweep_tenant
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.link_watch import LinkWatch
from llama_herd.worker.jobs.lost_messages import LostMessages
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: Most tenants of one call: managed Redis takes no more than about 4,000 arguments.
MAX_TURNS = 200

#: Most characters of an error that are logged.
MAX_COMPLAINT = 200


class Sweeper(threading.Thread):
    """Once a second sweeps the ledgers, and releases jobs that wait here though another worker has room.

    Any number of workers may sweep: a short lock in Redis admits one at a time.
    """

    def __init__(
        self, tenancies: Tenancies, overflow: Overflow, links: LinkWatch, messages: LostMessages
    ) -> None:
        super().__init__(name="sweeper", daemon=True)
        self._redis = tenancies.redis
        self._tenancies = tenancies
        self._acts = (overflow.shed, self._gather, self._sweep, messages.look, links.look)
        self._is_stopping = threading.Event()
        self._complaint = ""
        self._known_separators: set[tuple[str, str]] = set()

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            for act in self._acts:
                try:
                    act()
                except RedisError as error:
                    self._complain(error)

    def _complain(self, error: RedisError) -> None:
        """Log an error that will not pass, such as a spoilt key, once. The publisher logs the others."""
        complaint = redis_message(error)[:MAX_COMPLAINT]
        if not is_temporary(error) and complaint != self._complaint:
            log.error("sweep failed", error=complaint)
            self._complaint = complaint

    def _sweep(self) -> None:
        """Sweep the tenants whose turn it is; of the many that have nothing to sweep one call takes note."""
        every = list(self._tenancies)
        for start in range(0, len(every), MAX_TURNS):
            lot = every[start : start + MAX_TURNS]
            are_due = run_call(self._redis, due_for_sweep([one.ledger for one in lot]))
            due = [one for one, is_due in zip(lot, are_due, strict=True) if is_due]
            sweeps = [sweep_tenant(one.ledger) for one in due]
            answers = run_calls(self._redis, sweeps) if due else []
            for tenancy, answer in zip(due, answers, strict=True):
                if isinstance(answer, Swept):
                    self._tell(tenancy, answer.jobs)
                else:
                    self._complain(answer)

    def _gather(self) -> None:
        """Lead messages home from lists that nobody asks; log once for each separator that there are such."""
        queues, seen = self._tenancies.queues, set[tuple[str, str]]()
        for start in range(0, len(queues), MAX_TURNS):
            has_more = True
            while has_more and not self._is_stopping.is_set():
                found = run_call(self._redis, gather_strays(queues[start : start + MAX_TURNS]))
                has_more = any(one.num_moved and one.has_more for one in found)
                seen.update(one[:2] for one in found)
                for one in found:
                    if one.num_moved and one[:2] not in self._known_separators:
                        self._known_separators.add(one[:2])
                        log.warning(
                            "messages of a producer with its own sep are led into the queue's lists",
                            queue=one.queue,
                            separator=repr(one.separator),
                        )
        self._known_separators &= seen  # a producer may make up ever new ones

    def _tell(self, tenancy: Tenancy, job_ids: Rows[str]) -> None:
        """Log which jobs were put back. They may be of a model that other workers serve."""
        tenancy.num_put_back += len(job_ids)
        ledger = tenancy.ledger
        origins = run_calls(self._redis, [ledger.origin(job_id) for job_id in job_ids])
        for job_id, found in zip(job_ids, origins, strict=True):
            origin = found if isinstance(found, JobOrigin) else JobOrigin("", 0, None)
            author = EventAuthor(ledger.worker, origin.model, ledger.tenant)
            line = author.line(job_id, origin.num_attempts, origin.trace_id)
            log.warning("job put back into the queue", **line)
