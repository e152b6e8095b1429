"""HTTP statuses and headers for the errors that llama-herd raises. docs/http.md has the table."""

from math import ceil

from llama_herd.error_code import known_code
from llama_herd.errors import GenerationError, HerdError, QueueFull

#: When to try again after a failure that passes.
RETRY_S = 1


def http_status(error: Exception) -> int:
    """The status code of an answer that reports this error."""
    if isinstance(error, GenerationError):
        known = known_code(error.code)
        if known is not None and known.http_status not in (500, 503):
            return known.http_status
        return 503 if error.retriable else 500
    if isinstance(error, HerdError):
        return error.http.status
    return 504 if isinstance(error, TimeoutError) else 500


def http_headers(error: Exception) -> dict[str, str]:
    """The headers that go with the status: `Retry-After`, in whole seconds, with 429 and 503."""
    if isinstance(error, QueueFull):
        return {"Retry-After": str(ceil(error.retry_after_s))}
    return {"Retry-After": str(RETRY_S)} if http_status(error) == 503 else {}
