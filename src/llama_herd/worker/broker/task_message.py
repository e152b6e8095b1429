"""A Celery message as a worker reads it: it names a job on record, or carries the job itself."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES
from llama_herd.tasks.protocol.job import SOURCES, GenerationJob
from llama_herd.tasks.protocol.kinds import Job, parse_job
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker.broker.message_json import UnreadableJson, as_plain_json, read_json, write_json
from llama_herd.worker.broker.request import DUE_MS, REFUSAL
from llama_herd.worker.settings import WorkerSettings

_NUMBER = re.compile("[0-9]{1,16}")

#: Recorded in place of a job that could not be read. It has no prompt, so it never runs.
NO_JOB = GenerationJob.model_construct()

_MALFORMED = "cannot be read ({}). Fix: send JSON of [args, kwargs, links], as Celery writes it"
_LEAVE_OUT = "Fix: .si() instead of .s() leaves the result of the task before it out"
_NO_TEXT = (
    "must be given as keyword arguments of the task, such as prompt and sampling. A positional argument is "
    f"the prompt: one text, or the result of one generation. {_LEAVE_OUT}"
)
_TWO_PROMPTS = f"is given beside a positional argument, which is the prompt. {_LEAVE_OUT}"


class TaskMessage(NamedTuple):
    """A message of our client carries no job: it is on record. Any other carries a job, or an error."""

    job: Job | None = None
    envelope: Envelope | None = None
    error: InvalidJob | None = None
    embed: dict[str, Any] | None = None  # links, chain and chord: what Celery does after the job

    @classmethod
    def read(cls, body: bytes | str, headers: Mapping[str, Any], settings: WorkerSettings) -> Self:
        """Read a message's body, which is JSON of [args, kwargs, embed]."""
        try:
            match read_json(body):
                case [list(args), dict(kwargs), dict() | None as embed]:
                    pass
                case _:
                    raise UnreadableJson("it is no such list")
            if not args and not kwargs and _is_ours(headers):
                return cls(embed=embed)
            envelope = Envelope.from_request(headers, embed, settings.queue, write_json)
        except UnreadableJson as error:  # some links can be read that are too deep to be written
            return cls(NO_JOB, Envelope.for_unread(headers["id"], settings.queue, {}), _malformed(error))
        if headers.get(REFUSAL) is not None:
            return cls(NO_JOB, envelope, headers[REFUSAL], embed)
        try:
            fields = _with_result(*as_plain_json([args, kwargs]))
            job = parse_job(_not_before(fields, headers.get(DUE_MS)), settings)
            return cls(job, envelope, embed=embed)
        except InvalidJob as error:
            return cls(NO_JOB, envelope, error, embed)
        except UnreadableJson as error:
            return cls(NO_JOB, envelope, _malformed(error), embed)


def _malformed(error: UnreadableJson) -> InvalidJob:
    return InvalidJob([FieldError("message", _MALFORMED.format(error))])


def _is_ours(headers: Mapping[str, Any]) -> bool:
    """Whether a script of the ledger has pushed the message; its delivery tag is <id>:<number>:<time>."""
    job_id, *counted = str(headers["properties"]["delivery_tag"]).rsplit(":", 2)
    return job_id == headers["id"] and len(counted) == 2 and all(map(_NUMBER.fullmatch, counted))


def _with_result(args: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The job's fields, with the result of the task before it as its prompt: Celery puts that first.

    Raises InvalidJob.
    """
    if not args:
        return fields
    if fields.get("kind") == "embed" and len(args) == 1:
        return _with_texts(args[0], fields)
    text = _text_of(args[0]) if len(args) == 1 else None
    if text is None:
        raise InvalidJob([FieldError("job", _NO_TEXT)])
    given = next((name for name in SOURCES if fields.get(name) is not None), None)
    if given is not None:
        raise InvalidJob([FieldError(given, _TWO_PROMPTS)])
    return {**fields, "prompt": text}


def _with_texts(result: object, fields: dict[str, Any]) -> dict[str, Any]:
    """The same of a job with texts: the result is one, or a list of them. Raises InvalidJob."""
    texts = [*map(_text_of, result if isinstance(result, list) else [result])]
    if None in texts:
        raise InvalidJob([FieldError("job", _NO_TEXT)])
    given = next((name for name in TEXT_SOURCES if fields.get(name) is not None), None)
    if given is not None:
        raise InvalidJob([FieldError(given, _TWO_PROMPTS)])
    return {**fields, "texts": texts}


def _text_of(result: object) -> str | None:
    """The text that a task has returned, or what a generation has said; None if it is anything else."""
    if isinstance(result, dict) and "finish_reason" in result:
        content = result.get("content")
        result = result.get("text") if content is None else content
    return result if isinstance(result, str) else None


def _not_before(fields: dict[str, Any], due_ms: int | None) -> dict[str, Any]:
    """The job's fields with `not_before` raised to the message's `eta`."""
    given = fields.get("not_before") or 0
    if due_ms is None or not isinstance(given, int) or due_ms <= given:
        return fields
    return {**fields, "not_before": due_ms}
