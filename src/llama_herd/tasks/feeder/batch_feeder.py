"""Takes batches that no feeder runs, and runs each in a thread of its own."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from redis.exceptions import ResponseError

from llama_herd.errors import HerdError, error_place
from llama_herd.tasks.batch.batch_run import BatchLeft
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.connect import connect, redis_errors, unavailable
from llama_herd.tasks.feeder.batch_execution import BatchCount, BatchExecution
from llama_herd.tasks.feeder.batch_lease import BatchLease, FeederLimits, Fenced
from llama_herd.tasks.feeder.storage_chores import StorageChores
from llama_herd.tasks.ledger.batch_records import BatchRecords
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.stored_files import DueItem, due_items
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.storage import Storage


def order_fairly(waiting: Iterable[DueItem], running: Iterable[DueItem]) -> list[DueItem]:
    """The batches that wait, in the order in which they are to run; of each tenant the oldest comes first."""
    num = Counter(one.tenant for one in running)
    places: list[tuple[int, DueItem]] = []
    for one in waiting:
        places.append((num[one.tenant], one))
        num[one.tenant] += 1
    return [one for _, one in sorted(places, key=lambda place: place[0])]


def batch_to_give_way(waiting: Iterable[DueItem], running: Sequence[DueItem]) -> DueItem | None:
    """The batch that stops for another tenant's: the last one of the tenant that runs most.

    None if that one would not run more than the other even then.
    """
    num = Counter(one.tenant for one in running)
    fewest = min((num[one.tenant] for one in waiting), default=None)
    if fewest is None or max(num.values(), default=0) - fewest < 2:
        return None
    most = max(num.values())
    return next(one for one in reversed(running) if num[one.tenant] == most)


log = logging.getLogger(__name__)

#: How often the feeder looks for batches.
LOOK_S = 1.0
#: Most batches that are looked at in one round: all that some tenants may have.
_MOST = 100_000
#: How long a batch is left alone after an error, as of its storage.
REST_S = 10.0
#: How long a batch rests while others want its place, if no row of it can run, for want of a worker.
STALLED_REST_S = 30.0
#: How long the end of this process waits for its threads.
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that this process runs."""

    thread: threading.Thread
    lease: BatchLease


@dataclass(eq=False)
class BatchFeeder:
    """The batches that this process runs, from `start` to `stop`."""

    settings: Settings
    storage: Storage
    limits: FeederLimits
    count: BatchCount
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)
    _wake: threading.Event = field(init=False, default_factory=threading.Event)
    _running: dict[DueItem, RunningBatch] = field(init=False, default_factory=dict)
    _clients: dict[str, Client] = field(init=False, default_factory=dict)
    _live: dict[str, frozenset[str]] = field(init=False, default_factory=dict)
    _is_crowded: bool = field(init=False, default=False)
    #: Leases that ran out, as while Redis was away: it is still to hear that these batches stopped nobody.
    _survived: deque[BatchLease] = field(init=False, default_factory=deque)
    #: Batches for which Redis has refused a call.
    _refused: set[DueItem] = field(init=False, default_factory=set)
    #: What was wrong at the last look: it is logged once, as long as it lasts.
    _complaints: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        url = self.settings.redis_url
        self._redis = connect(url)
        self._chores = StorageChores(self._redis, url, self.storage, self.limits, self._client_of)
        self._look_thread = threading.Thread(target=self._look_until_stopped, name="feeder", daemon=True)

    def start(self) -> None:
        self._look_thread.start()

    def look_soon(self) -> None:
        """Look for batches now: there may be a new one."""
        self._wake.set()

    def stop(self) -> None:
        """Let other feeders have the batches. Their jobs go on meanwhile."""
        self._stopping.set()
        self._wake.set()
        until_s = monotonic() + STOP_S
        self._leave_all()
        self._look_thread.join(STOP_S)
        for batch in self._leave_all():  # also what it has taken meanwhile
            batch.thread.join(max(0.0, until_s - monotonic()))
        for client in list(self._clients.values()):
            client.close()
        self._redis.close()

    def _leave_all(self) -> list[RunningBatch]:
        """Let all batches that run here be left to others, and return them."""
        running = list(self._running.values())
        for batch in running:
            batch.lease.leaving.set()
        return running

    def _look_until_stopped(self) -> None:
        """Look for batches every LOOK_S, or sooner when `look_soon` asks for it."""
        while not self._stopping.is_set():
            before, self._complaints = self._complaints, set()
            try:
                self._look()
            except HerdError as error:
                self._complaints.add(str(error))
            except Exception as error:
                self._complaints.add(error_place(error))
            for complaint in sorted(self._complaints - before):
                log.warning("batches wait: %s", complaint)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _look(self) -> None:
        """Take batches that are due, as long as there is room, and delete the files that are."""
        self._running = {due: batch for due, batch in self._running.items() if batch.thread.is_alive()}
        self._close_idle_clients()
        with redis_errors(self.settings.redis_url):
            while self._survived:
                self._survived[0].survive()
                self._survived.popleft()
            try:
                self._chores.end_lost()
            except ResponseError as error:  # which does not keep this storage's batches from running
                self._complaints.add(str(unavailable(error, self.settings.redis_url)))
            if not self.storage.is_there:
                return
            key = BatchRecords(storage=self.storage.id).due_key
            due_batches = run_call(self._redis, due_items(key, _MOST, int(1000 * self.limits.lease_s)))
            self._fill_free_slots([due for due in due_batches if due not in self._running])
            self._chores.delete_due()

    def _fill_free_slots(self, waiting: Sequence[DueItem]) -> None:
        """Run batches that wait. If no more may run, stalled ones give way, or one to another tenant's."""
        self._live = {}
        wanting = set(waiting) - self._refused
        self._is_crowded = len(wanting) > self.limits.max_batches - len(self._running)
        if len(self._running) < self.limits.max_batches:
            self._refused = set()
            for due in order_fairly(waiting, self._running):
                if len(self._running) >= self.limits.max_batches:
                    break
                try:
                    self._take(due)
                except ResponseError as error:  # a right lacks, or its record is damaged
                    why = unavailable(error, self.settings.redis_url)
                    self._complaints.add(f"tenant {due.tenant}: {why}")
                    self._refused.add(due)
        elif wanting and (stalled := [one for one in self._running.values() if one.lease.waits]):
            for batch, _ in zip(stalled, wanting, strict=False):
                batch.lease.leaving.set()
        elif not any(batch.lease.leaving.is_set() for batch in self._running.values()):
            leaves = batch_to_give_way(wanting, list(self._running))
            if leaves is not None:
                self._running[leaves].lease.leaving.set()

    def _take(self, due: DueItem) -> None:
        """Run a batch in a thread, unless another feeder was faster."""
        records = BatchRecords(due.tenant, self.storage.id)
        claimed = run_call(self._redis, records.claim(due.id, int(1000 * self.limits.lease_s)))
        if claimed is not None:
            lease = BatchLease(self._redis, self.settings.redis_url, records, claimed, self.limits.lease_s)
            if self._is_crowded and lease.is_stalled(self._live_models(due.tenant)):
                self._give_back(lease, STALLED_REST_S, is_stalled=True)
                return
            settings = self.settings.model_copy(update={"tenant": due.tenant})
            client = self._client_of(due.tenant)
            execution = BatchExecution(lease, client, settings, self.storage, self.limits, self.count)
            thread = threading.Thread(target=self._run_in_thread, args=(execution,), name=due.id, daemon=True)
            self._running[due] = RunningBatch(thread, lease)
            thread.start()

    def _live_models(self, tenant: str) -> frozenset[str]:
        """The models that live workers have. Each look asks once for a tenant."""
        if tenant not in self._live:
            workers = run_call(self._redis, Reports(tenant).workers())
            self._live[tenant] = frozenset(worker.model for worker in workers)
        return self._live[tenant]

    def _run_in_thread(self, execution: BatchExecution) -> None:
        lease, batch_id = execution.lease, execution.lease.record.id
        self.count.begin()
        try:
            execution.run()
        except Fenced:
            log.warning("batch %s: another feeder has it", batch_id)
            self._survived.append(lease)
        except BatchLeft:
            rests = lease.waits and not self._stopping.is_set()
            self._give_back(lease, STALLED_REST_S if rests else 0.0, is_stalled=lease.waits)
        except HerdError as error:
            log.warning("batch %s rests: %s", batch_id, error)
            self._give_back(lease, REST_S)
        except Exception as error:
            log.error("batch %s rests: %s", batch_id, error_place(error))
            self._give_back(lease, REST_S, in_vain=True)
        else:
            self.count.end(lease.state)
            log.info("batch %s: %s", batch_id, lease.state)
        finally:
            self.count.leave()

    def _client_of(self, tenant: str) -> Client:
        if tenant not in self._clients:
            self._clients[tenant] = Client(settings=self.settings, tenant=tenant)
        return self._clients[tenant]

    def _close_idle_clients(self) -> None:
        """Close those of tenants without a batch here: each has connections of its own."""
        for tenant in self._clients.keys() - {due.tenant for due in self._running}:
            self._clients.pop(tenant).close()

    def _give_back(self, lease: BatchLease, delay_s: float, **why: bool) -> None:
        """Let another feeder have the batch. If Redis is away, the lease runs out by itself."""
        try:
            lease.give_back(delay_s, **why)
        except Fenced:
            pass
        except HerdError:
            if not why.get("in_vain"):
                self._survived.append(lease)
