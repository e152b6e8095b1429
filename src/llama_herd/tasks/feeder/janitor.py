"""Deletes the bytes of files that have expired, that were deleted, or whose upload was never finished."""

import redis

from llama_herd.tasks.ledger.redis_call import run
from llama_herd.tasks.ledger.stored_files import Due, StoredFiles, due_members
from llama_herd.tasks.storage.storage import Place, Storage

#: Most files that are looked at in one round.
_MOST = 100


def delete_due_files(connection: redis.Redis, storage: Storage) -> None:
    """Delete what is due. Raises RedisError, StorageUnavailable."""
    files = StoredFiles(storage=storage.id)
    for due in run(connection, due_members(files.due_key, _MOST)):
        _delete(connection, storage, due)


def _delete(connection: redis.Redis, storage: Storage, due: Due) -> None:
    files = StoredFiles(due.tenant, storage.id)
    if run(connection, files.drop(due.id, expired=True)) in ("dropped", "unknown"):
        storage.delete(Place(due.tenant, due.id))
        run(connection, files.deleted(due.id))
