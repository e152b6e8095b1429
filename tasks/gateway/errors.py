"""Errors as OpenAI writes them: a status, and an object that says what is wrong."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from llama_herd.error_code import ErrorCode, known_code
from llama_herd.errors import (
    BadInput,
    DeadlineExceeded,
    GenerationError,
    HerdError,
    InvalidJob,
    JobConflict,
    JobNotFound,
    JobRunning,
    QueueFull,
    RecordUnreadable,
    RedisUnavailable,
)
from llama_herd.tasks.events import End

log = logging.getLogger(__name__)

#: OpenAI's type of each status; others below 500 are those of a bad request.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}

#: Ends of a job that are the request's own fault.
_BAD_REQUESTS = frozenset(
    (
        *(ErrorCode.INVALID_JOB, ErrorCode.PROMPT_TOO_LONG, ErrorCode.NO_CHAT_TEMPLATE),
        *(ErrorCode.TEMPLATE_ERROR, ErrorCode.TOKENIZER_ERROR),
    )
)

#: When to try again after a failure that passes.
RETRY_S = 1


@dataclass(eq=False)
class Problem(HerdError):
    """Why a request is not answered as it was meant. `param` names the field that is wrong."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    @classmethod
    def of(cls, error: HerdError, *, bad_status: int = 400) -> "Problem":
        """The problem that one of our errors is. bad_status: for a job that cannot be accepted."""
        match error:
            case Problem():
                return error
            case InvalidJob():
                param = error.fields[0].field if len(error.fields) == 1 else None
                return cls(bad_status, ErrorCode.INVALID_JOB, str(error), param)
            case JobConflict():
                return cls(409, "job_conflict", str(error))
            case JobRunning():
                return cls(409, "job_running", "a worker runs this job: cancel it first")
            case JobNotFound():
                return not_found("no such job: it was never submitted, it was purged, or it is forgotten")
            case QueueFull():
                message = f"{error.depth} {error.unit} wait, and the limit is {error.limit}"
                return cls(429, "queue_full", message, headers=_retry_after(error.retry_after_s))
            case RedisUnavailable():
                log.warning("%s", error)
                return cls(503, "queue_unavailable", "the queue is away", headers=_retry_after(RETRY_S))
            case GenerationError():
                return _of_failure(error)
            case DeadlineExceeded():
                return cls(504, "deadline", "the job was not finished by its deadline")
            case RecordUnreadable():
                log.warning("%s", error)
                return cls(500, ErrorCode.UNREADABLE, "the data of this job is not what we wrote")
            case BadInput():
                return cls(400, "bad_input", str(error))
            case _:
                return cls(500, "internal_error", str(error))

    @classmethod
    def of_end(cls, end: End) -> "Problem":
        """The problem that a job's end is, if it is no answer."""
        if end.error is not None:
            return cls.of(GenerationError(end.error.code, end.error.message, end.error.retriable))
        if end.finish_reason == "deadline":
            return cls.of(DeadlineExceeded())
        return cls(409, ErrorCode.CANCELLED, "the job was cancelled")


def not_found(message: str, code: str = "not_found", param: str | None = None) -> Problem:
    return Problem(404, code, message, param)


def bad_request(message: str, code: str = "bad_request", param: str | None = None) -> Problem:
    return Problem(400, code, message, param)


def _of_failure(error: GenerationError) -> Problem:
    if known_code(error.code) in _BAD_REQUESTS:
        return Problem(400, error.code, error.message)
    if error.retriable:
        return Problem(503, error.code, error.message, headers=_retry_after(RETRY_S))
    return Problem(500, error.code, error.message)


def _retry_after(seconds: float) -> Mapping[str, str]:
    """Whole seconds, as HTTP has them, and not too early."""
    return {"Retry-After": str(max(1, ceil(seconds)))}
