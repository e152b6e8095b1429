"""Takes batches that need somebody, and runs each in a thread of its own."""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from redis.exceptions import ResponseError

from llama_herd.errors import HerdError
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection import connect, redis_errors, unavailable
from llama_herd.tasks.error_place import place_of
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.feed import Feed
from llama_herd.tasks.feeder.feeding import Left
from llama_herd.tasks.feeder.janitor import Janitor
from llama_herd.tasks.feeder.lease import Fenced, Lease
from llama_herd.tasks.feeder.limits import Limits
from llama_herd.tasks.feeder.lost import LostStorages
from llama_herd.tasks.feeder.turns import in_turn, who_gives_way
from llama_herd.tasks.ledger.batch_records import BatchRecords
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.stored_files import DueItem, StoredFiles, due_items
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.storage import Storage

log = logging.getLogger(__name__)

#: How often it looks for batches.
LOOK_S = 1.0
#: Most batches that are looked at in one round: all that some tenants may have.
_MOST = 100_000
#: How long a batch rests whose storage fails.
REST_S = 10.0
#: How long the end of this process waits for its threads.
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """A batch that is run here. leaving: set when it is to be left to others."""

    thread: threading.Thread
    leaving: threading.Event


class Feeder:
    """The batches that this process runs, from `start` to `stop`."""

    def __init__(self, settings: Settings, storage: Storage, limits: Limits, count: BatchCount) -> None:
        self._count = count
        self._settings = settings
        self._storage = storage
        self._limits = limits
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._places: dict[DueItem, Place] = {}
        self._clients: dict[str, Client] = {}
        self._looking = threading.Thread(target=self._look_until_stopped, name="feeder", daemon=True)
        self._making = threading.Lock()
        self._redis = connect(settings.redis_url)
        self._janitor = Janitor(self._redis, storage)
        self._lost = LostStorages(self._redis, settings.redis_url, storage, limits, self._cancel)
        #: Batches that Redis did not let it take.
        self._refused: set[DueItem] = set()
        #: What was wrong at the last look: it is logged once, as long as it lasts.
        self._complaints: set[str] = set()

    def start(self) -> None:
        self._looking.start()

    def look_soon(self) -> None:
        """Look for batches now: there may be a new one."""
        self._wake.set()

    def stop(self) -> None:
        """Let other feeders have the batches. Their jobs go on meanwhile."""
        self._stopping.set()
        self._wake.set()
        until_s = monotonic() + STOP_S
        self._leave_all()
        self._looking.join(STOP_S)
        for place in self._leave_all():  # also what it has taken meanwhile
            place.thread.join(max(0.0, until_s - monotonic()))
        for client in self._clients.values():
            client.close()
        self._redis.close()

    def _leave_all(self) -> list[Place]:
        places = list(self._places.values())
        for place in places:
            place.leaving.set()
        return places

    def _look_until_stopped(self) -> None:
        while not self._stopping.is_set():
            before, self._complaints = self._complaints, set()
            try:
                self._look()
            except HerdError as error:
                self._complaints.add(str(error))
            except Exception as error:
                self._complaints.add(place_of(error))
            for complaint in sorted(self._complaints - before):
                log.warning("batches wait: %s", complaint)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _look(self) -> None:
        """Take batches that are due, as long as there is room, and delete the files that are."""
        self._places = {due: place for due, place in self._places.items() if place.thread.is_alive()}
        with redis_errors(self._settings.redis_url):
            self._see_to_lost()
            if not self._storage.is_there:
                return
            self._share([due for due in run_call(self._redis, self._due) if due not in self._places])
            self._janitor.delete_due()

    def _see_to_lost(self) -> None:
        try:
            self._lost.look()
        except ResponseError as error:
            self._complaints.add(str(unavailable(error, self._settings.redis_url)))

    @property
    def _due(self) -> RedisCall[tuple[DueItem, ...]]:
        key = BatchRecords(storage=self._storage.id).due_key
        return due_items(key, _MOST, int(1000 * self._limits.lease_s))

    def _share(self, waiting: Sequence[DueItem]) -> None:
        """Give the free places to batches that wait. If there is none, one batch may have to make room."""
        if len(self._places) < self._limits.max_batches:
            self._refused = {due for due in in_turn(waiting, self._places) if self._is_refused(due)}
        elif not any(place.leaving.is_set() for place in self._places.values()):
            leaves = who_gives_way(set(waiting) - self._refused, list(self._places))
            if leaves is not None:
                self._places[leaves].leaving.set()

    def _is_refused(self, due: DueItem) -> bool:
        """Take a batch, unless Redis refuses: rights in its tenant may lack, or its record may be spoilt."""
        try:
            self._take(due)
        except ResponseError as error:
            self._complaints.add(f"tenant {due.tenant}: {unavailable(error, self._settings.redis_url)}")
            return True
        return False

    def _take(self, due: DueItem) -> None:
        """Run a batch in a thread, unless another feeder was faster."""
        if len(self._places) >= self._limits.max_batches:
            return
        records = BatchRecords(due.tenant, self._storage.id)
        claimed = run_call(self._redis, records.claim(due.id, int(1000 * self._limits.lease_s)))
        if claimed is not None:
            lease = Lease(self._redis, self._settings.redis_url, records, claimed, self._limits.lease_s)
            leaving = threading.Event()
            thread = threading.Thread(target=self._run, args=(due, lease, leaving), name=due.id, daemon=True)
            self._places[due] = Place(thread, leaving)
            thread.start()

    def _run(self, due: DueItem, lease: Lease, leaving: threading.Event) -> None:
        self._count.begin()
        try:
            self._feed(due, lease, leaving).run()
        except Fenced:
            log.warning("batch %s: another feeder has it", due.id)
        except Left:
            self._give_back(lease, 0.0)
        except HerdError as error:
            log.warning("batch %s rests: %s", due.id, error)
            self._give_back(lease, REST_S)
        except Exception as error:
            log.error("batch %s rests: %s", due.id, place_of(error))
            self._give_back(lease, REST_S)
        else:
            self._count.end(lease.state)
            log.info("batch %s: %s", due.id, lease.state)
        finally:
            self._count.leave()

    def _cancel(self, tenant: str, run_id: str) -> None:
        """End the jobs of a batch that nobody can run."""
        self._client_of(self._settings_of(tenant)).cancel_jobs(run_id=run_id)

    def _settings_of(self, tenant: str) -> Settings:
        return self._settings.model_copy(update={"tenant": tenant})

    def _feed(self, due: DueItem, lease: Lease, leaving: threading.Event) -> Feed:
        settings = self._settings_of(due.tenant)
        files = StoredFiles(due.tenant, self._storage.id)
        client = self._client_of(settings)
        return Feed(lease, client, settings, self._storage, files, self._limits, leaving, self._count)

    def _client_of(self, settings: Settings) -> Client:
        with self._making:
            if settings.tenant not in self._clients:
                self._clients[settings.tenant] = Client(settings=settings)
            return self._clients[settings.tenant]

    def _give_back(self, lease: Lease, delay_s: float) -> None:
        """If Redis is away, the lease runs out."""
        with suppress(HerdError):
            lease.give_back(delay_s)
