"""Deletes the bytes of files that have expired, that were deleted, or whose upload was never finished."""

import redis
from redis.exceptions import ResponseError

from llama_herd.errors import StorageUnavailable
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.stored_files import DueItem, StoredFiles, due_items
from llama_herd.tasks.storage.storage import Storage, StoragePlace

#: Most files that are looked at in one round.
_MOST = 100


class Janitor:
    """Deletes the bytes of files that are due. A file that cannot be deleted holds up no other."""

    def __init__(self, connection: redis.Redis, storage: Storage) -> None:
        self._redis = connection
        self._storage = storage
        #: What Redis has refused in the last round, and will refuse again.
        self._num_refused = 0

    def delete_due(self) -> None:
        """One round. Raises RedisError, StorageUnavailable."""
        key = StoredFiles(storage=self._storage.id).due_key
        due = run_call(self._redis, due_items(key, _MOST + self._num_refused))
        refusals = [error for one in due if (error := self._delete_or_refusal(one))]
        self._num_refused = len(refusals)
        if refusals:
            raise refusals[0]

    def _delete_or_refusal(self, due: DueItem) -> ResponseError | None:
        files = StoredFiles(due.tenant, self._storage.id)
        try:
            self._delete(files, due)
        except ResponseError as error:
            return error
        except StorageUnavailable:
            run_call(self._redis, files.put_off(due.id))
            raise
        return None

    def _delete(self, files: StoredFiles, due: DueItem) -> None:
        if run_call(self._redis, files.drop(due.id, expired=True)) in ("dropped", "unknown"):
            self._storage.delete(StoragePlace(due.tenant, due.id))
            run_call(self._redis, files.note_deleted(due.id))
