"""Submitting a job: its id, the call, and the errors if it is not accepted."""

import uuid
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple, get_args

from llama_herd.errors import (
    BadInput,
    FieldError,
    HerdError,
    InvalidJob,
    JobConflict,
    KeptFull,
    NotReplicated,
    QueueFull,
)
from llama_herd.tasks.client.arguments import TEXT, is_text
from llama_herd.tasks.client.pausing import paused_queues
from llama_herd.tasks.client.status_texts import unserved_note
from llama_herd.tasks.ledger.answers import CancelReason, Submission, Submitted
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, together
from llama_herd.tasks.protocol.job import ROW_PREFIX, is_job_id, is_row_id
from llama_herd.tasks.protocol.kinds import Job, parse_job
from llama_herd.tasks.protocol.message import Envelope, known_traceparent, model_of, queue_name
from llama_herd.tasks.settings import Settings

#: UUID namespace of ids that are derived from names.
_NAMESPACE = uuid.UUID("5c1a7e6e-50a5-5d0e-9d1f-0e6f6c6c616d")
MAX_KEY_CHARS = 255

#: Longest name of a batch, which is part of its jobs' ids.
MAX_RUN_CHARS = 100

#: Bounds of `QueueFull.retry_after_s`.
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class AcceptedJob(NamedTuple):
    """A job that was accepted. note: what is wrong with its queue; empty if nothing is known to be."""

    job_id: str
    note: str


class Beside(NamedTuple):
    """What may be given beside a job's fields: its id, or a name of the client's own, and its trace.

    ignore_result: Celery stores no result. It is for jobs that we read and purge ourselves.
    """

    job_id: str | None = None
    idempotency_key: str | None = None
    traceparent: str | None = None
    ignore_result: bool | None = None


class NewJob(NamedTuple):
    """A valid job to submit. `name`: which argument its id came from, for error messages."""

    job_id: str
    name: str
    envelope: Envelope
    job: Job


def new_job(given: Job | Mapping[str, Any], settings: Settings, beside: Beside) -> NewJob:
    """Check and name a job. Raises InvalidJob."""
    return named_job(parse_job(given, settings), settings, beside)


def named_job(job: Job, settings: Settings, beside: Beside) -> NewJob:
    """Name a job that was checked against these settings. Raises InvalidJob."""
    job.check_deadline()
    model = job.model or settings.default_model
    name, job_id = "job_id", beside.job_id
    if beside.idempotency_key is not None:
        name, job_id = "idempotency_key", id_of_key(settings.tenant, beside.idempotency_key)
    elif job_id is None:
        job_id = str(uuid.uuid4())
    checked_job_id(job_id)
    if job.webhook is not None and is_row_id(job_id):
        message = f"an id that begins with {ROW_PREFIX} is that of a batch's row, whose end no webhook tells"
        raise InvalidJob([FieldError(name, f"{message}. Fix: another {name}, or no webhook")])
    trace = known_traceparent(beside.traceparent)
    if beside.traceparent is not None and trace is None:
        message = "must be like the W3C's header: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>"
        raise InvalidJob([FieldError("traceparent", message)])
    queue, ignore_result = queue_name(model, settings.tenant), bool(beside.ignore_result)
    envelope = Envelope.for_job(job_id, queue, ignore_result=ignore_result, traceparent=trace)
    return NewJob(job_id, name, envelope, job.model_copy(update={"model": model}))


def new_job_from_arguments(given: Job | Mapping[str, Any], settings: Settings) -> NewJob:
    """`new_job` of a job, or of all arguments of `submit` in one mapping. Raises InvalidJob."""
    if not isinstance(given, Mapping):
        return new_job(given, settings, Beside())
    beside = Beside(*map(given.get, Beside._fields))
    job = given.get("job")
    fields = {name: value for name, value in given.items() if name not in ("job", *Beside._fields)}
    if job is not None and fields:
        raise InvalidJob([FieldError("job", "cannot be combined with fields of its own: give one of them")])
    if None not in (beside.job_id, beside.idempotency_key):
        raise InvalidJob([FieldError("job_id", "cannot be combined with idempotency_key: give one of them")])
    return new_job(fields if job is None else job, settings, beside)


async def enqueue(ledger: Ledger, named: NewJob, settings: Settings) -> AcceptedJob:
    """Enqueue a job, and wait for replicas if that is set. Raises JobConflict, QueueFull, NotReplicated.

    It is noted if no worker serves the job's model while some serve others: then the name may be wrong.
    A name in HERD_MODELS is right.
    """
    answer = await ledger.submit(named.job_id, named.job, named.envelope)
    if error := submit_error(ledger, named, answer):
        raise error
    if too_few := (await missing_replicas([named.job_id], ledger, settings)):
        raise too_few[named.job_id]
    return AcceptedJob(named.job_id, await queue_note(ledger, named, answer))


def submit_error(ledger: Ledger, named: NewJob, answer: Submitted) -> HerdError | None:
    """Why a job was not accepted; None if it was."""
    match answer.kind:
        case Submission.QUEUE_FULL | Submission.TOKENS_FULL:
            return queue_full_error(ledger, named, answer)
        case Submission.KEPT_FULL:
            return KeptFull(*answer.kept)
        case Submission.CONFLICT:
            return JobConflict(
                f"{named.name}: another job already has it, {named.job_id}, or had it and was purged. "
                f"Fix: choose another {named.name}, or submit exactly the job that has it"
            )
    return None


async def missing_replicas(
    job_ids: Sequence[str], ledger: Ledger, settings: Settings
) -> dict[str, NotReplicated]:
    """Wait for replicas if that is set, and return those of the jobs that too few of them have.

    All in one round trip, so by one connection: WAIT counts what this one has written. It may have written
    nothing, if the job was accepted before. So it publishes something on a channel that nobody reads: that
    goes to replicas, after all that was written before.
    """
    wanted, limit_s = settings.replicas, settings.replicas_timeout_s
    if not (wanted and job_ids):
        return {}
    calls: list[RedisCall[Any]] = [
        *map(ledger.record, job_ids),
        RedisCall("PUBLISH", (), (ledger.channel(""), ""), int),
        RedisCall("WAIT", (), (wanted, int(1000 * limit_s)), int),
    ]
    *records, _, num = await together(calls)
    copies = [0 if record is None else int(num) for record in records]
    found = zip(job_ids, copies, strict=True)
    return {job_id: NotReplicated(job_id, num, wanted, limit_s) for job_id, num in found if num < wanted}


async def queue_note(ledger: Ledger, named: NewJob, answer: Submitted) -> str:
    """Say what is wrong with the queue of an accepted job; empty if nothing is known to be.

    A queue that somebody has paused has no mistyped name.
    """
    model = model_of(named.envelope.queue, ledger.tenant)
    if not answer.served_instead or model in ledger.standing_models:
        return ""
    if named.envelope.queue in await paused_queues(ledger.tenant):
        return ""
    served = sorted(model_of(queue, ledger.tenant) for queue in answer.served_instead)
    return unserved_note(model, None, served)


def queue_full_error(ledger: Ledger, named: NewJob, answer: Submitted) -> QueueFull:
    """The error. Its time is how long workers take for what exceeds the limit, at their latest rate."""
    queue = named.envelope.queue
    if answer.kind is Submission.QUEUE_FULL:
        retry_s = _retry_s(answer.num_jobs - ledger.max_queue + 1, answer)
        return QueueFull(queue, "jobs", answer.num_jobs, ledger.max_queue, retry_s)
    excess = answer.num_tokens + named.job.estimated_tokens - ledger.max_queue_tokens
    retry_s = _retry_s(ceil(excess * max(answer.num_jobs, 1) / answer.num_tokens), answer)
    return QueueFull(queue, "tokens", answer.num_tokens, ledger.max_queue_tokens, retry_s)


def _retry_s(num_jobs: int, answer: Submitted) -> float:
    if answer.taken_per_s == 0:
        return MAX_RETRY_S
    return min(max(num_jobs / answer.taken_per_s, MIN_RETRY_S), MAX_RETRY_S)


def id_of_key(tenant: str, key: str) -> str:
    """The id of the job with an idempotency key. Raises InvalidJob."""
    if not is_text(key):
        raise InvalidJob([FieldError("idempotency_key", f"must be {TEXT}")])
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidJob(
            [FieldError("idempotency_key", f"must be 1 to {MAX_KEY_CHARS} characters long, got {len(key)}")]
        )
    return str(uuid.uuid5(_NAMESPACE, f"{tenant}/key/{key}"))


def id_of_retry(tenant: str, job_id: str) -> str:
    """The id of the job that runs a poisoned one again."""
    return str(uuid.uuid5(_NAMESPACE, f"{tenant}/retry/{job_id}"))


def checked_reason(reason: CancelReason) -> CancelReason:
    """`reason` if a job can be cancelled for it. Raises BadInput."""
    if reason not in get_args(CancelReason):
        raise BadInput(f"reason: must be one of {', '.join(get_args(CancelReason))}")
    return reason


def checked_job_id(job_id: str) -> str:
    """`job_id` if it can name a job. Raises InvalidJob."""
    if not is_job_id(job_id):
        raise InvalidJob(
            [FieldError("job_id", "must be 1 to 128 letters, digits, dots, underscores, colons or dashes")]
        )
    return job_id


def checked_run_id(run_id: str) -> str:
    """`run_id` if it can name a batch. Raises InvalidJob."""
    if not is_job_id(run_id) or len(run_id) > MAX_RUN_CHARS:
        message = f"must be 1 to {MAX_RUN_CHARS} letters, digits, dots, underscores, colons or dashes"
        raise InvalidJob([FieldError("run_id", message)])
    return run_id
