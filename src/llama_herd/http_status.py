"""HTTP statuses and headers for the errors that llama-herd raises. docs/http.md has the table."""

from collections.abc import Mapping
from math import ceil

from llama_herd.error_code import ErrorCode
from llama_herd.errors import (
    BadInput,
    DeadlineExceeded,
    FileLost,
    GenerationError,
    InvalidJob,
    JobConflict,
    JobNotFound,
    JobRunning,
    NotPermitted,
    QueueFull,
    RedisUnavailable,
    StorageFull,
    StorageUnavailable,
)

#: The first that an error is an instance of counts; any other error is a 500.
STATUS_OF_ERROR: tuple[tuple[type[Exception], int], ...] = (
    (InvalidJob, 422),
    (JobConflict, 409),
    (BadInput, 400),
    (JobNotFound, 404),
    (JobRunning, 409),
    (QueueFull, 429),
    (NotPermitted, 403),
    (RedisUnavailable, 503),
    (FileLost, 410),
    (StorageFull, 507),
    (StorageUnavailable, 503),
    (DeadlineExceeded, 504),
    (TimeoutError, 504),
)

#: The statuses of codes that say more than whether the same job may succeed later.
_STATUS_OF_CODE: Mapping[str, int] = {
    **{code: 422 for code in ErrorCode if code.is_bad_input},
    ErrorCode.CANCELLED: 409,
    ErrorCode.BATCH_CANCELLED: 409,
    ErrorCode.DEADLINE: 504,
    ErrorCode.BATCH_EXPIRED: 504,
    ErrorCode.FORGOTTEN: 410,
    ErrorCode.UNSERVED: 404,
}

#: When to try again after a failure that passes.
RETRY_S = 1


def http_status(error: Exception) -> int:
    """The status code of an answer that reports this error."""
    if isinstance(error, GenerationError):
        return _STATUS_OF_CODE.get(error.code, 503 if error.retriable else 500)
    return next((status for kind, status in STATUS_OF_ERROR if isinstance(error, kind)), 500)


def http_headers(error: Exception) -> dict[str, str]:
    """The headers that go with the status: `Retry-After`, in whole seconds, with 429 and 503."""
    if isinstance(error, QueueFull):
        return {"Retry-After": str(ceil(error.retry_after_s))}
    return {"Retry-After": str(RETRY_S)} if http_status(error) == 503 else {}
