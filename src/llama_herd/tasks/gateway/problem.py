"""Errors as OpenAI writes them: a status, and an object that says what is wrong."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import DeadlineExceeded, GenerationError, HerdError, InvalidJob
from llama_herd.http_status import RETRY_S, http_headers, http_status
from llama_herd.tasks.ledger.stored_files import QuotaExceeded
from llama_herd.tasks.openai.answer_schema import ErrorAnswer, ErrorWords
from llama_herd.tasks.openai.embeddings import KNOWN as VECTOR_NAMES
from llama_herd.tasks.openai.other_fields import NEUTRAL, REFUSED
from llama_herd.tasks.openai.ranks import KNOWN as RANK_NAMES
from llama_herd.tasks.openai.request_body import BODY, CHAT_NAMES
from llama_herd.tasks.openai.responses.body import NAMES as RESPONSE_NAMES, OWN_REFUSED, in_their_words
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.text_job import counted_from

_OWN_NAMES = ("reasoning_effort", "stream", "stream_options", "traceparent")
#: Names of fields that may be logged.
_FIELDS = frozenset(
    name
    for kind in (GenerationJob, EmbeddingJob, RankingJob, SamplingParams, ChatMessage)
    for name in kind.model_fields
).union(
    NEUTRAL, REFUSED, CHAT_NAMES, VECTOR_NAMES, RANK_NAMES, RESPONSE_NAMES, OWN_REFUSED, (BODY, *_OWN_NAMES)
)
#: At the beginning of a message: the job's field with the prompt, its kind, and any field.
_PROMPT_FIELD = re.compile(r"^(prompt|prompt_ids|texts|text_ids|documents)\b")
_KIND_FIELD = re.compile("^kind(?=: )")
_FIELD_NAME = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
#: The headers of a problem with the body, whose rest is not read, so that the connection cannot go on.
CLOSE = {"Connection": "close"}
#: The headers of a problem that passes by itself.
PASSES = {"Retry-After": str(RETRY_S)}
#: Tells OpenAI's clients whether to send a request again.
AGAIN_HEADER = "X-Should-Retry"
#: Statuses of what would end alike again. Unless they are told, OpenAI's clients send it twice more.
_FINAL = (409, 500, 504, 507)
#: OpenAI's type of each status; others below 500 are those of a bad request.
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}

#: Codes of jobs for which OpenAI's clients know another.
OPENAI_CODES: Mapping[str, str] = {ErrorCode.PROMPT_TOO_LONG: "context_length_exceeded"}


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
        kind = _OPENAI_TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = ErrorWords(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorAnswer(error=error).model_dump()

    @property
    def answer_headers(self) -> dict[str, str]:
        """The headers of an answer that reports it."""
        return {**({AGAIN_HEADER: "false"} if self.status in _FINAL else {}), **self.headers}

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    @classmethod
    def from_error(cls, error: HerdError, *, bad_status: int = 400) -> "Problem":
        """The problem that one of our errors is, with the status that `http_status` knows.

        bad_status: in place of 422, which OpenAI does not answer.
        """
        if isinstance(error, Problem):
            return error
        status, said = http_status(error), error.http
        told = (said.code.format(e=error), said.message.format(e=error))
        problem = cls(bad_status if status == 422 else status, *told, headers=http_headers(error))
        problem.cause = said.cause and said.cause.format(e=error)
        if isinstance(error, InvalidJob):
            wrong = {one.field for one in error.fields} - {BODY}
            problem.param = wrong.pop() if len(wrong) == 1 else None
            problem.cause = "; ".join(f"{_known_name(field)}: {message}" for field, message in error.fields)
        return problem

    @classmethod
    def from_end(cls, end: End, source: str = "prompt", first: int = 0) -> "Problem":
        """The problem that a job's end is, if it is no answer.

        source: where the request has its prompt. first: how many texts it has before those of the job.
        """
        if end.error is not None:
            message, param = _in_route_words(counted_from(first, end.error.message), source)
            problem = cls.from_error(GenerationError(end.error.code, message, end.error.retriable))
            problem.param = param
            problem.code = OPENAI_CODES.get(problem.code, problem.code)
            return problem
        if end.finish_reason == "deadline":
            return cls.from_error(DeadlineExceeded())
        return cls(409, ErrorCode.CANCELLED, "the job was cancelled")


def not_found(message: str, code: str = "not_found", param: str | None = None) -> Problem:
    return Problem(404, code, message, param)


def bad_request(message: str, code: str = "bad_request", param: str | None = None) -> Problem:
    return Problem(400, code, message, param)


def quota_exceeded(full: QuotaExceeded, fix: str, param: str | None = None) -> Problem:
    """The problem of a quota that would be exceeded."""
    message = (
        f"this {full.whose} has {full.has:,} {full.what}, and with this one it would have more than "
        f"{full.limit:,}. Fix: {fix}"
    )
    return Problem(429, "quota_exceeded", message, param)


def _in_route_words(message: str, source: str) -> tuple[str, str | None]:
    """A worker's message about a job's field in a route's words; and the field's name there, if it names one.

    source: where the request has its prompt, such as `prompt.3`. The kind of a job follows from the route, so
    where it is wrong, the model is.
    """
    told = in_their_words(message) if source == "input" else message
    told = _PROMPT_FIELD.sub(source, told).replace("sampling.", "")
    told = _KIND_FIELD.sub("model", told)
    found = _FIELD_NAME.match(told)
    names_field = found is not None and told[found.end() :].startswith((": ", " and "))
    return told, found.group() if found and names_field else None


def _known_name(field: str) -> str:
    """A field's name for the log, if it is one of ours or of OpenAI's: another may be a prompt's text."""
    parts = field.split(".")
    return field if all(part.isdigit() or part in _FIELDS for part in parts) else "?"
