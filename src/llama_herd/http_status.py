"""What a web service answers when llama-herd raises an error. docs/http.md has the table."""

from math import ceil

from llama_herd.error_code import ErrorCode, known_code
from llama_herd.errors import (
    BadInput,
    DeadlineExceeded,
    GenerationError,
    InvalidJob,
    JobConflict,
    JobNotFound,
    JobRunning,
    QueueFull,
    RedisUnavailable,
)

#: The first that an error is an instance of counts; any other error is a 500.
STATUS_OF_ERROR: tuple[tuple[type[Exception], int], ...] = (
    (InvalidJob, 422),
    (JobConflict, 409),
    (BadInput, 400),
    (JobNotFound, 404),
    (JobRunning, 409),
    (QueueFull, 429),
    (RedisUnavailable, 503),
    (DeadlineExceeded, 504),
    (TimeoutError, 504),
)

_STATUS_OF_CODE = {
    ErrorCode.INVALID_LINE: 422,
    ErrorCode.TEMPLATE_ERROR: 422,
    ErrorCode.CANCELLED: 409,
    ErrorCode.DEADLINE: 504,
    ErrorCode.FORGOTTEN: 410,
}


def http_status(error: Exception) -> int:
    """The status code of an answer that reports this error."""
    if isinstance(error, GenerationError):
        return status_of_code(error.code)
    return next((status for kind, status in STATUS_OF_ERROR if isinstance(error, kind)), 500)


def status_of_code(code: str) -> int:
    """The status code for a job that ended with this ErrorCode; 500 for one of a newer version."""
    known = known_code(code)
    if known is None:
        return 500
    if known in _STATUS_OF_CODE:
        return _STATUS_OF_CODE[known]
    if known.is_bad_input:
        return 422
    return 503 if known.retriable else 500


def http_headers(error: Exception) -> dict[str, str]:
    """The headers that go with the status: `Retry-After`, in whole seconds, when the queue is full."""
    return {"Retry-After": str(ceil(error.retry_after_s))} if isinstance(error, QueueFull) else {}
