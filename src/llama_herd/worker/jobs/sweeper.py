"""Puts jobs back into the queue: those of dead workers, those whose message was lost, those without room."""

import threading
from collections.abc import Sequence as Rows

import structlog
from redis.exceptions import RedisError

from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.answers import JobOrigin, Release, Swept
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.sweep import due_for_sweep, gather_strays, sweep_tenant
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.publisher import Publisher, ReleasedJob
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: Most tenants of one call: managed Redis takes no more than about 4,000 arguments.
MAX_TURNS = 200

#: Most characters of an error that are logged.
MAX_COMPLAINT = 200


class Overflow:
    """Releases jobs that this worker has claimed and cannot run soon: while another worker idles, or while a
    suspect waits to run alone.

    The newest jobs go, so that the longest waiting ones keep their places. At most half of the free room of
    the other workers is used, since other full workers see the same room. A suspect stays: it must run alone
    anywhere. From one look before the release this worker takes no messages of the tenant, as the released
    jobs would come back to it.
    """

    def __init__(self, tenancies: Tenancies, gate: SuspectGate, publisher: Publisher) -> None:
        self._tenancies = tenancies
        self._gate = gate
        self._publisher = publisher
        #: Queues of which this worker is to take no messages; who takes them looks within a second.
        self.paused = set[str]()

    def shed(self) -> None:
        """Release jobs that other workers have room for, or that must leave this one; called once a second.

        Raises RedisError. Jobs that were released before the error stay fenced here.
        """
        for tenancy in self._tenancies:
            self._shed(tenancy)

    def _shed(self, tenancy: Tenancy) -> None:
        """Release a tenant's newest waiting jobs where others have room, and all that must leave."""
        in_hand = tenancy.claims.in_hand()
        waiting = [attempt for attempt in in_hand if attempt.waits_for_room]
        num_free = tenancy.num_free_elsewhere if waiting else 0
        was_paused, is_paused = tenancy.queue in self.paused, num_free > 0 or self._gate.is_closed
        (self.paused.add if is_paused else self.paused.discard)(tenancy.queue)
        if was_paused and num_free:
            num_released = min(len(waiting), (num_free + 1) // 2)
            newest = sorted(waiting, key=lambda attempt: attempt.claimed_s)[len(waiting) - num_released :]
            self._release(tenancy, newest, "jobs released to workers with room")
        leaving = [attempt for attempt in in_hand if self._gate.must_leave(attempt)]
        if leaving:
            self._release(tenancy, leaving, "jobs released, a suspect must run alone")

    def _release(self, tenancy: Tenancy, attempts: list[Attempt], log_event: str) -> None:
        answers = run_calls(tenancy.redis, [tenancy.release(one, push=True) for one in attempts])
        released = [one for one, answer in zip(attempts, answers, strict=True) if answer is Release.RELEASED]
        if released:
            log.info(log_event, num_jobs=len(released))
            self._publisher.put(list(map(ReleasedJob, released)))


class Sweeper(threading.Thread):
    """Once a second sweeps the ledgers, and releases jobs that wait here though another worker has room.

    Any number of workers may sweep: a short lock in Redis admits one at a time.
    """

    def __init__(self, tenancies: Tenancies, overflow: Overflow) -> None:
        super().__init__(name="sweeper", daemon=True)
        self._redis = tenancies.redis
        self._tenancies = tenancies
        self._overflow = overflow
        self._is_stopping = threading.Event()
        self._complaint = ""
        self._known_separators: set[tuple[str, str]] = set()

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            for act in (self._overflow.shed, self._gather, self._sweep):
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
        queues = self._tenancies.queues
        for start in range(0, len(queues), MAX_TURNS):
            has_more = True
            while has_more and not self._is_stopping.is_set():
                found = run_call(self._redis, gather_strays(queues[start : start + MAX_TURNS]))
                has_more = any(one.num_moved and one.has_more for one in found)
                for one in found:
                    if one.num_moved and one[:2] not in self._known_separators:
                        self._known_separators.add(one[:2])
                        log.warning(
                            "messages of a producer with its own sep are led into the queue's lists",
                            queue=one.queue,
                            separator=repr(one.separator),
                        )

    def _tell(self, tenancy: Tenancy, job_ids: Rows[str]) -> None:
        """Log which jobs were put back. They may be of a model that other workers serve."""
        tenancy.num_put_back += len(job_ids)
        ledger = tenancy.ledger
        origins = run_calls(self._redis, [ledger.origin(job_id) for job_id in job_ids])
        for job_id, found in zip(job_ids, origins, strict=True):
            origin = found if isinstance(found, JobOrigin) else JobOrigin("", 0, None)
            author = EventAuthor(ledger.worker, origin.model, ledger.tenant)
            line = author.line(job_id, origin.num_starts, origin.trace_id)
            log.warning("job put back into the queue", **line)
