"""Errors as OpenAI writes them: a status, and an object that says what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import (
    BadInput,
    DeadlineExceeded,
    GenerationError,
    HerdError,
    InvalidJob,
    JobConflict,
    JobNotFound,
    JobRunning,
    NotPermitted,
    NotReplicated,
    QueueFull,
    RecordUnreadable,
    RedisUnavailable,
)
from llama_herd.http_status import http_headers, http_status
from llama_herd.tasks.chat import ChatMessage
from llama_herd.tasks.events import End
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.openai.answer_schema import ErrorAnswer, ErrorWords
from llama_herd.tasks.openai.request import BODY, CHAT_NAMES, NEUTRAL
from llama_herd.tasks.sampling import SamplingParams

#: Names of fields that may be logged.
_FIELDS = frozenset(
    name for kind in (GenerationJob, SamplingParams, ChatMessage) for name in kind.model_fields
).union(NEUTRAL, CHAT_NAMES, (BODY, "stream", "stream_options", "traceparent"))
#: OpenAI's type of each status; others below 500 are those of a bad request.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class Problem(HerdError):
    """Why a request is not answered as it was meant.

    param: the field that is wrong. cause: what the log says in place of the message; None: the same.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cause: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = ErrorWords(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorAnswer(error=error).model_dump()

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    @classmethod
    def of(cls, error: HerdError, *, bad_status: int = 400) -> "Problem":
        """The problem that one of our errors is, with the status that `http_status` knows.

        bad_status: in place of 422, which OpenAI does not answer.
        """
        if isinstance(error, Problem):
            return error
        status = http_status(error)
        code, message = _words(error)
        fields = {one.field for one in error.fields} - {BODY} if isinstance(error, InvalidJob) else set[str]()
        param = fields.pop() if len(fields) == 1 else None
        status = bad_status if status == 422 else status
        return cls(status, code, message, param, http_headers(error), _cause_of(error))

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


def not_permitted(error: NotPermitted, what: str, param: str | None = None) -> Problem:
    """That the gateway's own user of Redis may not do what it was asked to."""
    message = (
        f"this gateway may not {what}: its user of Redis lacks the right. Fix: herd acl, see docs/security.md"
    )
    return Problem(403, "not_permitted", message, param, cause=str(error))


def _cause_of(error: HerdError) -> str | None:
    """What the log says of an error. Names of fields and words of a template may be a prompt's."""
    match error:
        case RedisUnavailable() | RecordUnreadable():
            return str(error)
        case InvalidJob():
            return "; ".join(f"{_known_name(field)}: {message}" for field, message in error.fields)
        case GenerationError():
            return error.code
        case _:
            return None


def _known_name(field: str) -> str:
    """A field's name if it is one of ours, or of OpenAI's."""
    parts = field.split(".")
    return field if all(part.isdigit() or part in _FIELDS for part in parts) else "?"


def _words(error: HerdError) -> tuple[str, str]:
    """The code and the message of an error, without what only the operator should read."""
    match error:
        case GenerationError():
            return error.code, error.message
        case InvalidJob():
            return ErrorCode.INVALID_JOB, str(error)
        case JobConflict():
            return "job_conflict", str(error)
        case JobRunning():
            return "job_running", "a worker runs this job: cancel it first"
        case JobNotFound():
            return "not_found", "no such job: it was never submitted, it was purged, or it is forgotten"
        case QueueFull():
            return "queue_full", f"{error.depth} {error.unit} wait, and the limit is {error.limit}"
        case NotPermitted():
            return "not_permitted", "this gateway's user of Redis lacks a right. Fix: herd acl"
        case NotReplicated():
            return "not_replicated", str(error)
        case RedisUnavailable():
            return "queue_unavailable", "the queue is away"
        case DeadlineExceeded():
            return ErrorCode.DEADLINE, "the job was not finished by its deadline"
        case RecordUnreadable():
            return ErrorCode.UNREADABLE, "the data of this job is not what we wrote"
        case BadInput():
            return "bad_input", str(error)
        case _:
            return "internal_error", str(error)
