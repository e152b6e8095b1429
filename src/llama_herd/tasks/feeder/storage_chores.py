"""What a feeder does for storages: it deletes files that are due, and ends the batches of lost storages."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic

from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.errors import StorageUnavailable
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.feeder.batch_lease import BatchLease, FeederLimits
from llama_herd.tasks.ledger.batch_records import BatchRecords, LineError
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.stored_files import (
    PLACE_MS,
    DueItem,
    StoredFiles,
    due_items,
    lost_storages,
    storage_seen,
)
from llama_herd.tasks.storage.storage import Storage, StoragePlace

#: Most files that are looked at in one round.
_MOST_DUE_FILES = 100
#: How often a gateway tells that it reaches its storage, and looks for lost ones.
SEEN_S = 30.0
#: A lost storage is left alone for so long: a gateway that reaches it may come back after an outage of all.
GRACE_S = 600.0
#: Most batches of a lost storage that are looked at in one round.
_MOST = 10_000
#: Where nothing lies. To ask how much that is takes a storage that can be reached.
_NOWHERE = StoragePlace("nobody", "nothing")
#: Why a batch of a lost storage fails.
_LOST = (
    "no gateway has reached the storage of its files for {:g} s. Fix: upload the input again; "
    "HERD_GATEWAY_STORAGE_LOST_S says how long batches wait for a storage"
)


@dataclass
class StorageChores:
    """Call both chores often. client_of: of a tenant."""

    redis: Redis
    url: str
    storage: Storage
    limits: FeederLimits
    client_of: Callable[[str], Client]
    #: Files of which Redis has refused a call in the last round, and will refuse it again.
    _num_refused: int = field(init=False, default=0)
    _last_look_s: float = field(init=False, default=-inf)
    _lost_since_s: dict[str, float] = field(init=False, default_factory=dict)

    def delete_due(self) -> None:
        """Delete the bytes of files that are due. A file that cannot be deleted holds up no other.

        Raises RedisError, StorageUnavailable.
        """
        key = StoredFiles(storage=self.storage.id).files_due_key
        due = run_call(self.redis, due_items(key, _MOST_DUE_FILES + self._num_refused))
        refusals = _refusals(self._delete, due)
        self._num_refused = len(refusals)
        if refusals:
            raise refusals[0]

    def _delete(self, due: DueItem) -> None:
        files = StoredFiles(due.tenant, self.storage.id)
        try:
            outcome = run_call(self.redis, files.drop(due.id, expired=True))
            if outcome in ("dropped", "unknown"):
                self.storage.delete(StoragePlace(due.tenant, due.id))
                is_over = outcome == "unknown"
                run_call(
                    self.redis, files.note_deleted(due.id) if is_over else files.put_off(due.id, PLACE_MS)
                )
        except StorageUnavailable:
            run_call(self.redis, files.put_off(due.id))
            raise

    def end_lost(self) -> None:
        """End the batches of storages that no gateway has reached for so long that they count as lost.

        Raises RedisError, and StorageUnavailable if this gateway's own storage cannot be reached.
        """
        if monotonic() - self._last_look_s < SEEN_S:
            return
        own, lost_in_ms = self.storage, int(1000 * self.limits.storage_lost_s)
        try:
            # Note that this gateway reaches its storage. Without any batch there it writes nothing.
            if own.is_there and run_call(self.redis, BatchRecords(storage=own.id).num_open()):
                own.extent(_NOWHERE)
                run_call(self.redis, storage_seen(own.id, lost_in_ms))
        finally:
            self._end_all_lost()
        self._last_look_s = monotonic()

    def _end_all_lost(self) -> None:
        """Let all their batches fail. These stay due: if a storage comes back, their parts are deleted."""
        now_s, before = monotonic(), self._lost_since_s
        self._lost_since_s = {one: before.get(one, now_s) for one in run_call(self.redis, lost_storages())}
        for storage, since_s in self._lost_since_s.items():
            if now_s - since_s >= GRACE_S:
                due = run_call(self.redis, due_items(BatchRecords(storage=storage).due_key, _MOST))
                if refusals := _refusals(partial(self._fail_batch, storage), due):
                    raise refusals[0]

    def _fail_batch(self, storage: str, due: DueItem) -> None:
        records = BatchRecords(due.tenant, storage)
        record = run_call(self.redis, records.get(due.id))
        if record is None:
            run_call(self.redis, records.note_cleaned(due.id))
        if record is None or record.is_final:
            return
        claimed = run_call(self.redis, records.claim(due.id, int(1000 * self.limits.lease_s)))
        if claimed is not None:
            self.client_of(due.tenant).cancel_jobs(run_id=record.run_id)
            lease = BatchLease(self.redis, self.url, records, claimed, self.limits.lease_s)
            message = _LOST.format(self.limits.storage_lost_s)
            lease.end("failed", errors=json.dumps([LineError("storage_lost", message)]))


def _refusals(do: Callable[[DueItem], None], due: Iterable[DueItem]) -> list[ResponseError]:
    """Do something with each, and return what Redis refuses: rights lack, or a record is spoilt."""
    refusals: list[ResponseError] = []
    for one in due:
        try:
            do(one)
        except ResponseError as error:
            refusals.append(error)
    return refusals
