"""One tenant's records of files and batches, and the problems of requests that ask for them."""

import re

from llama_herd.tasks.gateway.problem import Problem, not_found
from llama_herd.tasks.ledger.batch_records import BatchRecords
from llama_herd.tasks.ledger.stored_files import QuotaExceeded, StoredFiles
from llama_herd.tasks.storage.storage import Storage

_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")


def files_of(storage: Storage, tenant: str) -> StoredFiles:
    """A tenant's files. Raises StorageUnavailable."""
    return StoredFiles(tenant, storage.id)


def batches_of(storage: Storage, tenant: str) -> BatchRecords:
    """A tenant's batches. Raises StorageUnavailable."""
    return BatchRecords(tenant, storage.id)


def checked_file_id(file_id: str) -> str:
    """Raise Problem if no file can have this id."""
    if not _FILE_ID.fullmatch(file_id):
        raise no_file()
    return file_id


def checked_batch_id(batch_id: str) -> str:
    """Raise Problem if no batch can have this id."""
    if not _BATCH_ID.fullmatch(batch_id):
        raise no_batch()
    return batch_id


def no_file(param: str | None = None) -> Problem:
    return not_found("no such file: it was never uploaded, it was deleted, or it has expired", param=param)


def no_batch() -> Problem:
    return not_found("no such batch: it was never made, or it ended a month ago")


def file_elsewhere() -> Problem:
    """The problem of a file whose bytes are in another gateway's storage."""
    message = (
        "the bytes of this file are in another gateway's storage. "
        "Fix: give all gateways the same HERD_GATEWAY_FILES"
    )
    return Problem(503, "files_elsewhere", message)


def quota_exceeded(full: QuotaExceeded, fix: str, param: str | None = None) -> Problem:
    """The problem of a quota that would be exceeded."""
    message = (
        f"this {full.whose} has {full.has:,} {full.what}, and with this one it would have more than "
        f"{full.limit:,}. Fix: {fix}"
    )
    return Problem(429, "quota_exceeded", message, param)
