"""A Celery message as a worker reads it: it names a job on record, or carries the job itself."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES
from llama_herd.tasks.protocol.job import SOURCES, GenerationJob
from llama_herd.tasks.protocol.kinds import Job, parse_job
from llama_herd.tasks.protocol.message import KIND_OF_TASK, Envelope, job_task_of
from llama_herd.worker.broker.message_json import UnreadableJson, as_plain_json, read_json, write_json
from llama_herd.worker.broker.request import DUE_MS, REFUSAL
from llama_herd.worker.settings import WorkerSettings

_NUMBER = re.compile("[0-9]{1,16}")

#: Recorded in place of a job that could not be read. It has no prompt, so it never runs.
NO_JOB = GenerationJob.model_construct()

_MALFORMED = "cannot be read ({}). Fix: send JSON of [args, kwargs, links], as Celery writes it"
_LEAVE_OUT = "Fix: .si() instead of .s() leaves the result of the task before it out"
_NO_PROMPT = (
    "must be given as keyword arguments of the task, such as prompt and sampling. A positional argument is "
    f"the prompt: one text, or the result of one generation. {_LEAVE_OUT}"
)
#: The same for jobs with texts, by their kind.
_NO_TEXTS = {
    "embed": "must be given as keyword arguments of the task, such as texts or text_ids. A positional "
    f"argument is texts: texts, or results of generations, one or a list. {_LEAVE_OUT}",
    "rank": "must be given as keyword arguments of the task, such as query and documents. Of positional "
    f"arguments a list is documents and a text is query; either may be results of generations. {_LEAVE_OUT}",
}
#: Fields of which one alone may be given, by that which a positional argument is.
_RIVALS = {"prompt": SOURCES, "texts": TEXT_SOURCES}
_GIVEN_TWICE = "is given beside a positional argument, which is {}. " + _LEAVE_OUT


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
            named = {"task": job_task_of(headers)}
            return cls(NO_JOB, Envelope.for_unread(headers["id"], settings.queue, named), _malformed(error))
        if headers.get(REFUSAL) is not None:
            return cls(NO_JOB, envelope, headers[REFUSAL], embed)
        try:
            fields = _fields_of(job_task_of(headers), *as_plain_json([args, kwargs]))
            job = parse_job(_not_before(fields, headers.get(DUE_MS)), settings)
            return cls(job, envelope, embed=embed)
        except InvalidJob as error:
            error.__traceback__ = error.__context__ = None  # their frames hold all messages that are read now
            return cls(NO_JOB, envelope, error, embed)
        except UnreadableJson as error:
            return cls(NO_JOB, envelope, _malformed(error), embed)


def _malformed(error: UnreadableJson) -> InvalidJob:
    return InvalidJob([FieldError("message", _MALFORMED.format(error))])


def _is_ours(headers: Mapping[str, Any]) -> bool:
    """Whether a script of the ledger has pushed the message; its delivery tag is <id>:<number>:<time>."""
    job_id, *counted = str(headers["properties"]["delivery_tag"]).rsplit(":", 2)
    return job_id == headers["id"] and len(counted) == 2 and all(map(_NUMBER.fullmatch, counted))


def _fields_of(task: str, args: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The job's fields, with the kind that its task names, and with its positional arguments by their names.

    Celery puts the result of the task before it first among these. Raises InvalidJob.
    """
    if kind := KIND_OF_TASK[task]:
        if fields.get("kind", kind) != kind:
            raise InvalidJob([FieldError("kind", f"must be {kind}, or absent, for the task {task}")])
        fields = {**fields, "kind": kind}
    if not args:
        return fields
    named = _named(fields.get("kind"), args)
    for name in named:
        given = next((one for one in _RIVALS.get(name, (name,)) if fields.get(one) is not None), None)
        if given is not None:
            raise InvalidJob([FieldError(given, _GIVEN_TWICE.format(name))])
    return {**fields, **named}


def _named(kind: object, args: list[Any]) -> dict[str, Any]:
    """Positional arguments of a job by their names. Raises InvalidJob."""
    found = dict[str, Any]()
    match kind, args:
        case "embed", [one]:
            found = {"texts": _texts_of(one if isinstance(one, list) else [one])}
        case "rank", _:
            found = dict(map(_named_in_rank, args))
        case _, [one]:
            found = {"prompt": _text_of(one)}
    if None in found.values() or len(found) != len(args):
        complaint = _NO_TEXTS.get(kind, _NO_PROMPT) if isinstance(kind, str) else _NO_PROMPT
        raise InvalidJob([FieldError("job", complaint)])
    return found


def _named_in_rank(arg: object) -> tuple[str, Any]:
    return ("documents", _texts_of(arg)) if isinstance(arg, list) else ("query", _text_of(arg))


def _texts_of(results: list[Any]) -> list[str] | None:
    """The same of each task; None if one is anything else."""
    texts = [text for text in map(_text_of, results) if text is not None]
    return texts if len(texts) == len(results) else None


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
