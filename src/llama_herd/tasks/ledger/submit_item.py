"""A new job as SUBMIT takes it, and what SUBMIT answers."""

import json
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import Submission, Submitted
from llama_herd.tasks.ledger.redis_call import Argument
from llama_herd.tasks.ledger.replies import rate_per_s, text
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import lane_of


@dataclass(frozen=True, slots=True)
class SubmitItem:
    """A new job as SUBMIT takes it.

    lists: keys that other jobs of the call may touch, too. num_bytes: length of its body and message.
    """

    entry: dict[str, Argument]
    lists: tuple[str, ...]
    num_bytes: int


def job_fields(job: Job, envelope: Envelope, body: bytes, keep_s: int | None = None) -> dict[str, Argument]:
    """A new job as `record.lua` takes it. body: its JSON. keep_s: if it has none of its own."""
    keep_s = keep_s if job.keep_s is None else job.keep_s
    deadline_ms = job.deadline_ms if job.timeout_s is None else f"+{job.timeout_ms}"
    return {
        "queue": envelope.queue,
        "body": body,
        "envelope": envelope.text,
        "deadline_ms": "" if deadline_ms is None else deadline_ms,
        "not_before": "" if job.not_before is None else job.not_before,
        "tokens": job.estimated_tokens,
        "lane": lane_of(job.priority),
        "webhook": job.webhook or "",
        "secret": job.webhook_secret or "",
        "keep_s": "" if keep_s is None else keep_s,
        "metadata": json.dumps(job.metadata) if job.metadata else "",
    }


def read_submitted(reply: list[Any]) -> Submitted:
    if reply[0] == b"kept_full":
        return Submitted(Submission.KEPT_FULL, kept=(reply[1], reply[2]))
    kind, num_jobs, num_tokens, num_taken, span_ms, *served = reply
    taken_per_s = rate_per_s(num_taken, span_ms)
    return Submitted(Submission(text(kind)), num_jobs, num_tokens, taken_per_s, tuple(map(text, served)))


_BARE_ANSWERS = {kind.encode(): Submitted(kind) for kind in Submission}


def read_submitted_many(reply: list[Any]) -> list[Submitted | ResponseError]:
    """The error of one job stands in the place of its answer."""
    answers: list[Submitted | ResponseError] = []
    for answer in reply:
        if isinstance(answer, bytes):
            answers.append(_BARE_ANSWERS[answer])
        else:
            is_error = answer[0] == b"error"
            answers.append(ResponseError(text(answer[1])) if is_error else read_submitted(answer))
    return answers
